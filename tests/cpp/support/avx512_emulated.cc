// The AVX512 table once more, over portable code instead of AVX512 instructions.
#ifndef HASTEN_EMULATE_AVX512
#define HASTEN_EMULATE_AVX512
#endif
#include "kernels/isa_avx512.cc"
