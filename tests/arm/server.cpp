// Calls Tercet's C++ functions for a process on another machine. Standard input: the number of a function;
// how many pieces of memory it is given, and the size and bytes of each; its arguments, each in 8 bytes, of a
// pointer the piece in the upper half and the place in it in the lower, or -1 for null. Standard output: all
// pieces, as they are afterwards.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <tuple>
#include <type_traits>
#include <vector>

#include "packed_weight/cpu/bound_product.hpp"

extern "C" {
int32_t tercet_best_isa();
std::remove_pointer_t<decltype(tercet::BoundProduct::product)> tercet_packed_product;
void tercet_gate(const float* gate_up, int32_t kind, int64_t rows, int64_t count, float* y,
                 int32_t threads, int32_t isa);
void tercet_attend(float* qkv, int64_t batch, int64_t heads, int64_t key_value_heads, int64_t dim,
                   const float* cos, const float* sin, const float* query_norm,
                   const float* key_norm, int32_t norm_across_heads, float epsilon, float scale, float cap,
                   void* keys, void* values, void* key_scales, void* value_scales,
                   const float* key_offset, int64_t bits, int64_t batch_stride, int64_t head_stride,
                   int64_t first, int64_t length, float* out, int32_t threads, int32_t isa);
}

namespace {

struct Piece {
  char* first;
  int64_t size;
};

void read_all(void* to, size_t size) {
  if (size && std::fread(to, size, 1, stdin) != 1) std::exit(0);
}

int64_t read_integer() {
  int64_t integer;
  read_all(&integer, sizeof integer);
  return integer;
}

template <class A>
A read(const std::vector<Piece>& pieces) {
  if constexpr (std::is_same_v<A, float>) {
    double number;
    read_all(&number, sizeof number);
    return static_cast<float>(number);
  } else {
    const int64_t integer = read_integer();
    if constexpr (!std::is_pointer_v<A>) return static_cast<A>(integer);
    else if (integer < 0) return nullptr;
    else return reinterpret_cast<A>(pieces[integer >> 32].first + static_cast<uint32_t>(integer));
  }
}

template <class... A>
void serve(void (*function)(A...)) {
  std::vector<Piece> pieces(read_integer());
  for (Piece& piece : pieces) {
    piece.size = read_integer();
    piece.first = static_cast<char*>(std::aligned_alloc(64, (piece.size + 127) / 64 * 64));
    read_all(piece.first, piece.size);
  }
  const std::tuple<A...> arguments{read<A>(pieces)...};
  std::apply(function, arguments);
  for (const Piece& piece : pieces) {
    std::fwrite(piece.first, piece.size, 1, stdout);
    std::free(piece.first);
  }
}

void find_best_isa(int32_t* best) { *best = tercet_best_isa(); }

}  // namespace

int main() {
  for (int64_t function; std::fread(&function, sizeof function, 1, stdin) == 1; std::fflush(stdout)) {
    if (function == 0) serve(find_best_isa);
    if (function == 1) serve(tercet_packed_product);
    if (function == 2) serve(tercet_gate);
    if (function == 3) serve(tercet_attend);
  }
}
