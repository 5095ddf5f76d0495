// Storage form to rows16 at the speed of memory: what tercet/packed_weight/from_storage.py calls.
//
// A stored row is a run of little-endian words of word_bits bits. A table gives each word's codes,
// already packed at `bits` bits a code, so the loop moves whole words and never single codes.
#include <atomic>
#include <cstdint>
#include <cstring>

#include "packed_weight/cpu/threads.hpp"

namespace tercet {

// Mirrors tercet.packed_weight.from_storage.Form, field by field.
struct Form {
  int64_t rows, columns, group, groups, runs_per_group, row_bytes;
  int32_t bits;        // of a code in rows16
  int32_t word_bits;   // of a stored word; 32 where stored codes lie as rows16 wants them
  int32_t word_codes;  // codes of a stored word
  uint32_t flip;       // what such a word of 32 bits is xored with
  const uint32_t* packed;   // by word: its codes at `bits` bits each, the first lowest
  const uint8_t* refused;   // by word: 1 where a code of it may not occur
};

// The four bytes at `at`, or as many as there are before `end`.
inline uint32_t load_dword(const uint8_t* at, const uint8_t* end) {
  uint32_t word = 0;
  if (end - at >= 4) {
    std::memcpy(&word, at, 4);
  } else {
    for (int i = 0; at + i < end; ++i) word |= static_cast<uint32_t>(at[i]) << 8 * i;
  }
  return word;
}

// The words of one stored row, one after the other.
template <int kWordBits>
class Words {
 public:
  Words(const Form& form, const uint8_t* row)
      : form_(form), at_(row), end_(row + form.row_bytes) {}

  uint32_t next() {
    if constexpr (kWordBits == 32) {
      const uint32_t word = load_dword(at_, end_);
      at_ += 4;
      return word ^ form_.flip;
    } else {
      const uint32_t word = read();
      refused_ |= form_.refused[word];
      return form_.packed[word];
    }
  }

  // Whether any word of the row was refused; reads the words that hold padding only, too.
  bool refused() {
    if constexpr (kWordBits == 32) return false;
    while ((end_ - at_) * 8 + have_ >= form_.word_bits) refused_ |= form_.refused[read()];
    return refused_;
  }

 private:
  uint32_t read() {
    if constexpr (kWordBits == 8) return *at_++;
    if constexpr (kWordBits == 16) {
      const uint32_t word = at_[0] | at_[1] << 8;
      at_ += 2;
      return word;
    }
    for (; have_ < form_.word_bits; have_ += 8) waiting_ |= static_cast<uint32_t>(*at_++) << have_;
    const uint32_t word = waiting_ & ((1u << form_.word_bits) - 1);
    waiting_ >>= form_.word_bits;
    have_ -= form_.word_bits;
    return word;
  }

  const Form& form_;
  const uint8_t *at_, *end_;
  uint32_t waiting_ = 0;
  int32_t have_ = 0;
  uint8_t refused_ = 0;
};

// One row to its lane of a block; whether one of its words was refused.
template <int kWordBits>
bool convert_row(const Form& form, const uint8_t* stored, uint32_t* lane) {
  Words<kWordBits> words(form, stored);
  const int width = form.word_codes * form.bits;
  uint64_t waiting = 0;
  int have = 0;
  for (int64_t group = 0; group < form.groups; ++group) {
    const int64_t first = group * form.group;
    const int64_t codes = form.columns - first < form.group ? form.columns - first : form.group;
    uint32_t* dword = lane + group * form.runs_per_group * 16;
    for (int64_t left = codes * form.bits; left > 0; left -= 32, dword += 16) {
      const int take = left < 32 ? static_cast<int>(left) : 32;
      for (; have < take; have += width) waiting |= static_cast<uint64_t>(words.next()) << have;
      *dword = static_cast<uint32_t>(waiting & ((1ull << take) - 1));
      waiting >>= take;
      have -= take;
    }
  }
  return words.refused();
}

struct Job {
  const Form& form;
  const uint8_t* stored;
  uint32_t* codes;
  std::atomic<bool> refused{false};
};

// Sixteen whole rows whose stored dwords are those of rows16: a transposition. Written in order,
// int8 [4864, 896] takes 0.4 ms; lane after lane, as odd groups need it, 1.7 ms.
void transpose_block(const Form& form, const uint8_t* stored, uint32_t* codes) {
  const int64_t dwords = form.columns * form.bits / 32;
  for (int64_t run = 0; run < dwords; ++run) {
    for (int lane = 0; lane < 16; ++lane) {
      std::memcpy(codes + run * 16 + lane, stored + lane * form.row_bytes + run * 4, 4);
      codes[run * 16 + lane] ^= form.flip;
    }
  }
}

template <int kWordBits>
void convert_block(void* context, long block) {
  Job& job = *static_cast<Job*>(context);
  const Form& form = job.form;
  uint32_t* codes = job.codes + block * form.groups * form.runs_per_group * 16;
  const int64_t group_bits = form.group * form.bits, row_bits = form.columns * form.bits;
  if (kWordBits == 32 && block * 16 + 16 <= form.rows && row_bits % 32 == 0 &&
      group_bits % 32 == 0 && form.columns % form.group == 0) {
    return transpose_block(form, job.stored + block * 16 * form.row_bytes, codes);
  }
  std::memset(codes, 0, form.groups * form.runs_per_group * 64);
  bool refused = false;
  for (int64_t lane = 0; lane < 16 && block * 16 + lane < form.rows; ++lane) {
    const uint8_t* row = job.stored + (block * 16 + lane) * form.row_bytes;
    refused |= convert_row<kWordBits>(form, row, codes + lane);
  }
  if (refused) job.refused.store(true, std::memory_order_relaxed);
}

// Scales or zero points: number_bytes each, infinite or NaN where all bits of `exponent` are set.
struct Scales {
  int64_t rows, groups, row_block;  // rows and groups of the weight; rows that share a scale
  int32_t number_bytes;
  uint32_t exponent, sign;  // masks; sign 0: negative numbers are allowed
};

struct ScaleJob {
  const Scales& scales;
  const void* stored;
  void* made;
  std::atomic<bool> refused{false};
};

template <class Number>
void convert_scale_block(void* context, long block) {
  ScaleJob& job = *static_cast<ScaleJob*>(context);
  const Scales& form = job.scales;
  const Number* stored = static_cast<const Number*>(job.stored);
  Number* made = static_cast<Number*>(job.made) + block * form.groups * 16;
  const Number exponent = form.exponent, sign = form.sign;
  bool refused = false;
  for (int64_t lane = 0; lane < 16; ++lane) {
    const int64_t row = block * 16 + lane;
    const Number* from = stored + row / form.row_block * form.groups;
    for (int64_t group = 0; group < form.groups; ++group) {
      const Number number = row < form.rows ? from[group] : 0;
      refused |= (number & exponent) == exponent;
      refused |= (number & sign) && number != sign;  // -0 is no negative number
      made[group * 16 + lane] = number;
    }
  }
  if (refused) job.refused.store(true, std::memory_order_relaxed);
}

}  // namespace tercet

// stored uint8 [rows, row_bytes] to codes uint32 [ceil(rows/16), groups * runs_per_group, 16]; 1
// where a word was refused, and the codes are then of no use.
extern "C" int32_t tercet_convert_storage(const tercet::Form* form, const uint8_t* stored,
                                          uint32_t* codes, int32_t threads) {
  using namespace tercet;
  Job job{*form, stored, codes};
  const Pool::Task task = form->word_bits == 32   ? convert_block<32>
                          : form->word_bits == 16 ? convert_block<16>
                          : form->word_bits == 8  ? convert_block<8>
                                                  : convert_block<0>;
  pool().run((form->rows + 15) / 16, threads, task, &job);
  return job.refused.load();
}

// scale [ceil(rows/row_block), groups] to [ceil(rows/16), groups, 16]; 1 where a number is not finite
// or, unless allowed, negative.
extern "C" int32_t tercet_convert_scale(const tercet::Scales* scales, const void* stored, void* made,
                                        int32_t threads) {
  using namespace tercet;
  ScaleJob job{*scales, stored, made};
  const Pool::Task task =
      scales->number_bytes == 2 ? convert_scale_block<uint16_t> : convert_scale_block<uint32_t>;
  pool().run((scales->rows + 15) / 16, threads, task, &job);
  return job.refused.load();
}
