// What an Arm processor has beside NEON, asked of the operating system.
#pragma once

#if defined(__aarch64__)
#if defined(__linux__)
#include <sys/auxv.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace tercet {

inline bool has_dotprod() {
#if defined(__linux__)
  constexpr unsigned long kDotProducts = 1ul << 20;  // HWCAP_ASIMDDP
  return getauxval(AT_HWCAP) & kDotProducts;
#elif defined(__APPLE__)
  int found = 0;
  size_t size = sizeof found;
  return !sysctlbyname("hw.optional.arm.FEAT_DotProd", &found, &size, nullptr, 0) && found;
#else
  return false;
#endif
}

}  // namespace tercet
#endif
