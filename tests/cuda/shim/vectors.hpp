#pragma once

/// CUDA's vector types, with CUDA's alignment: the checks of loads and stores go by it.

#define OUTERLOOP_SHIM_VECTOR_2(scalar, name) \
  struct alignas(2 * sizeof(scalar)) name {   \
    scalar x, y;                              \
  };                                          \
  inline name make_##name(scalar x, scalar y) { return {x, y}; }

#define OUTERLOOP_SHIM_VECTOR_4(scalar, name) \
  struct alignas(4 * sizeof(scalar)) name {   \
    scalar x, y, z, w;                        \
  };                                          \
  inline name make_##name(scalar x, scalar y, scalar z, scalar w) { return {x, y, z, w}; }

OUTERLOOP_SHIM_VECTOR_2(signed char, char2)
OUTERLOOP_SHIM_VECTOR_4(signed char, char4)
OUTERLOOP_SHIM_VECTOR_2(unsigned char, uchar2)
OUTERLOOP_SHIM_VECTOR_4(unsigned char, uchar4)
OUTERLOOP_SHIM_VECTOR_2(short, short2)
OUTERLOOP_SHIM_VECTOR_4(short, short4)
OUTERLOOP_SHIM_VECTOR_2(unsigned short, ushort2)
OUTERLOOP_SHIM_VECTOR_4(unsigned short, ushort4)
OUTERLOOP_SHIM_VECTOR_2(int, int2)
OUTERLOOP_SHIM_VECTOR_4(int, int4)
OUTERLOOP_SHIM_VECTOR_2(unsigned, uint2)
OUTERLOOP_SHIM_VECTOR_4(unsigned, uint4)
OUTERLOOP_SHIM_VECTOR_2(long long, longlong2)
OUTERLOOP_SHIM_VECTOR_2(unsigned long long, ulonglong2)
OUTERLOOP_SHIM_VECTOR_2(float, float2)
OUTERLOOP_SHIM_VECTOR_4(float, float4)
OUTERLOOP_SHIM_VECTOR_2(double, double2)

#undef OUTERLOOP_SHIM_VECTOR_2
#undef OUTERLOOP_SHIM_VECTOR_4

struct uint3 {
  unsigned x, y, z;
};

struct dim3 {
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
  unsigned x, y, z;
};
