/* The dense codecs (dense.py) in compiled form: the same bytes and the same numbers, in one pass instead of six to ten. And which values
   of a block are the largest (sparse.py), and the products of several vectors with each other (gram.py).

   Every operation is one IEEE 754 operation or an integer one, in the order in which dense.py and weighted_mean.py do it: in single
   precision, but for sums that are kept in double. Build with -ffp-contract=off and without -ffast-math: a fused multiplication and
   addition would round once where two roundings are meant. What is not the plain case (values that are not finite, scales and codes
   that nobody writes, means that could leave float32) is not judged here: 1 is returned, what was written means nothing, and the
   caller does it the other way.

   A chunk of n values of a block codec, n a multiple of the block: its scales (little-endian float32), then its codes. One of float32
   or float16, of any length: its values, little-endian. Chunks lie one behind the other where they are written, and anywhere where
   they are read: a value may lie at any byte. */

#include <float.h>
#include <stdint.h>
#include <string.h>

/* Each of these would give other bytes than dense.py: no library then. */
#ifdef __FAST_MATH__
#error "-ffast-math: operations would not round as IEEE 754 says"
#endif
#if FLT_EVAL_METHOD != 0
#error "floats are computed in another precision"
#endif
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "scales and values are little-endian"
#endif

#if defined(CLONES) && defined(__x86_64__)
#define EVERY_MACHINE __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define EVERY_MACHINE
#endif
#define INSIDE static inline __attribute__((always_inline))

enum { INT8 = 0, INT4 = 1, E3M0 = 2, FP32 = 3, FP16 = 4 };
#define MOST_BLOCK 256

static const uint32_t MAGNITUDE = 0x7FFFFFFFu, INFINITY_BITS = 0x7F800000u, SMALLEST_NORMAL_BITS = 0x00800000u;
/* sqrt(2) in float32 is 0x3FB504F3: adding this carries into the exponent just where the mantissa is that of sqrt(2) or more. */
static const uint32_t CARRY_FROM_SQRT_2 = (1u << 23) - 0x3504F3u;
/* 1.5 * 2^23: a number of at most 2^22 in size that is added to it is rounded half to even to a whole one, which then stands in the
   lowest bits. */
static const float ROUNDER = 12582912.0f;
static const uint32_t ROUNDER_BITS = 0x4B400000u;

INSIDE uint32_t bits_of(float value) { uint32_t bits; memcpy(&bits, &value, 4); return bits; }
INSIDE float float_of(uint32_t bits) { float value; memcpy(&value, &bits, 4); return value; }
INSIDE int block_of(int kind) { return kind == INT4 ? 128 : 256; }
INSIDE float largest_of(int kind) { return kind == INT8 ? 127.0f : kind == INT4 ? 7.0f : 1.0f; }
INSIDE int64_t code_bytes(int kind, int64_t n) { return kind == INT8 ? n : n / 2; }

INSIDE void codes_of(int kind, const float *values, float divisor, uint8_t *codes)
{
    const int block = block_of(kind);
    uint8_t each[MOST_BLOCK];
    for (int i = 0; i < block; i++) {
        float relative = values[i] / divisor;
        if (kind == E3M0) {
            uint32_t bits = bits_of(relative);
            int32_t level = (int32_t)(((bits & MAGNITUDE) + CARRY_FROM_SQRT_2) >> 23) - 120;
            level = level > 0 ? level : 0;
            each[i] = (uint8_t)(level > 0 ? ((uint32_t)level | (bits >> 28 & 8u)) : 0u);
        } else {
            each[i] = (uint8_t)(bits_of(relative + ROUNDER) - ROUNDER_BITS);
        }
    }
    if (kind == INT8)
        memcpy(codes, each, (size_t)block);
    else
        for (int i = 0; i < block / 2; i++)
            codes[i] = (uint8_t)((each[2 * i] & 15) | (each[2 * i + 1] << 4));
}

INSIDE int encode_blocks(int kind, const float *values, const float *minus, int64_t num_chunks, int64_t n, uint8_t *out)
{
    const int block = block_of(kind);
    const int64_t blocks = n / block;
    for (int64_t chunk = 0; chunk < num_chunks; chunk++) {
        uint8_t *codes = out + 4 * blocks;
        for (int64_t b = 0; b < blocks; b++) {
            float own[MOST_BLOCK];
            const float *from = values;
            if (minus) {
                for (int i = 0; i < block; i++)
                    own[i] = values[i] - minus[i];
                from = own;
                minus += block;
            }
            uint32_t most = 0;
            for (int i = 0; i < block; i++) {
                uint32_t bits = bits_of(from[i]) & MAGNITUDE;
                most = bits > most ? bits : most;
            }
            if (most >= INFINITY_BITS)
                return 1;
            float scale = float_of(most) / largest_of(kind);
            if (scale < FLT_MIN)
                scale = 0.0f;
            memcpy(out + 4 * b, &scale, 4);
            codes_of(kind, from, scale > 0 ? scale : float_of(INFINITY_BITS), codes);
            codes += code_bytes(kind, block);
            values += block;
        }
        out = codes;
    }
    return 0;
}

/* 65504, the largest float16, as bits of float32. */
static const uint32_t LARGEST_HALF_BITS = 0x477FE000u;
/* 2^-14, the smallest normal float16, as bits of float32; and 0.5, to which a smaller one is added so that it is rounded half to even
   to a multiple of 2^-24, which then stands in the lowest bits. */
static const uint32_t SMALLEST_HALF_BITS = 0x38800000u, HALF_BITS = 0x3F000000u;
static const uint32_t BIAS_BETWEEN = (127u - 15u) << 23;

/* Without a branch, for which a compiler would do one value at a time. */
INSIDE uint32_t either(int is_first, uint32_t first, uint32_t second)
{
    uint32_t mask = 0u - (uint32_t)is_first;
    return (first & mask) | (second & ~mask);
}

/* Round half to even; values beyond the largest are clamped there. */
INSIDE uint16_t half_of(float value)
{
    uint32_t bits = bits_of(value), sign = bits >> 16 & 0x8000u, size = bits & MAGNITUDE;
    size = size < LARGEST_HALF_BITS ? size : LARGEST_HALF_BITS;
    uint32_t small = bits_of(float_of(size) + float_of(HALF_BITS)) - HALF_BITS;
    uint32_t large = (size - BIAS_BETWEEN + 0xFFFu + (size >> 13 & 1u)) >> 13;
    return (uint16_t)(sign | either(size < SMALLEST_HALF_BITS, small, large));
}

/* Of a finite one: every float16 is a float32. */
INSIDE float of_half(uint16_t half)
{
    uint32_t size = (uint32_t)(half & 0x7FFFu) << 13, sign = (uint32_t)(half & 0x8000u) << 16;
    /* below 2^-14 the bits are a multiple of 2^-24: set behind those of 2^-14, which is then taken off */
    float small = float_of(size | SMALLEST_HALF_BITS) - float_of(SMALLEST_HALF_BITS);
    return float_of(sign | either(size < 1u << 23, bits_of(small), size + BIAS_BETWEEN));
}

INSIDE int encode_plain(int kind, const float *values, const float *minus, int64_t num_values, uint8_t *out)
{
    const int size_bytes = kind == FP32 ? 4 : 2;
    for (int64_t begin = 0; begin < num_values; begin += MOST_BLOCK) {
        const int num = num_values - begin < MOST_BLOCK ? (int)(num_values - begin) : MOST_BLOCK;
        float own[MOST_BLOCK];
        uint16_t halves[MOST_BLOCK];
        uint32_t most = 0;
        for (int i = 0; i < num; i++) {
            own[i] = minus ? values[begin + i] - minus[begin + i] : values[begin + i];
            uint32_t size = bits_of(own[i]) & MAGNITUDE;
            most = size > most ? size : most;
        }
        if (most >= INFINITY_BITS)
            return 1;
        if (kind == FP16)
            for (int i = 0; i < num; i++)
                halves[i] = half_of(own[i]);
        memcpy(out + size_bytes * begin, kind == FP32 ? (const void *)own : (const void *)halves, (size_t)(size_bytes * num));
    }
    return 0;
}

/* The values of one block before their scale; nonzero where a code is one that nobody writes, or not zero under a scale of zero. */
INSIDE int levels_of(int kind, const uint8_t *codes, uint32_t scale_bits, float *levels)
{
    const int block = block_of(kind);
    uint32_t any = 0, wrong = 0;
    if (kind == INT8) {
        for (int i = 0; i < block; i++) {
            int8_t code = (int8_t)codes[i];
            any |= (uint32_t)(uint8_t)code;
            wrong |= code == -128;
            levels[i] = (float)code;
        }
    } else {
        uint8_t each[MOST_BLOCK];
        for (int i = 0; i < block / 2; i++) {
            each[2 * i] = codes[i] & 15;
            each[2 * i + 1] = codes[i] >> 4;
        }
        for (int i = 0; i < block; i++) {
            uint32_t code = each[i];
            any |= code;
            wrong |= code == 8;
            if (kind == INT4)
                levels[i] = (float)((int32_t)(code ^ 8u) - 8);
            else
                levels[i] = (code & 7u) ? float_of((code & 8u) << 28 | ((code & 7u) + 120u) << 23) : 0.0f;
        }
    }
    return wrong || (scale_bits == 0 && any);
}

INSIDE int is_scale(uint32_t bits)
{
    return bits == 0 || bits - SMALLEST_NORMAL_BITS < INFINITY_BITS - SMALLEST_NORMAL_BITS;
}

enum { DECODE, ADD, ADD_WIDE, STEP };

/* What is made of value number i: a multiplication, then an addition or a subtraction. */
INSIDE void use(int work, float value, int i, double factor, const float *from, void *to)
{
    const float single = (float)factor;
    float *out = to;
    double *wide = to;
    if (work == ADD_WIDE)
        wide[i] = wide[i] + (double)value * factor;
    else
        out[i] = work == DECODE ? value : work == ADD ? out[i] + value * single : from[i] - value * single;
}

/* What is made of the values of chunks; nothing of a value that could be beyond `most` in size. */
INSIDE int read_blocks(int work, int kind, const uint8_t *const *chunks, int64_t num_chunks, int64_t n, double factor, float most,
                       const float *from, uint8_t *to)
{
    const int block = block_of(kind);
    const int64_t blocks = n / block;
    for (int64_t chunk = 0; chunk < num_chunks; chunk++) {
        const uint8_t *scales = chunks[chunk], *codes = scales + 4 * blocks;
        for (int64_t b = 0; b < blocks; b++, codes += code_bytes(kind, block), to += (work == ADD_WIDE ? 8 : 4) * block) {
            float levels[MOST_BLOCK], scale;
            memcpy(&scale, scales + 4 * b, 4);
            uint32_t bits = bits_of(scale);
            if (!is_scale(bits) || scale > most / 128.0f || levels_of(kind, codes, bits, levels))
                return 1;
            for (int i = 0; i < block; i++)
                use(work, levels[i] * scale, i, factor, from, to);
            if (work == STEP)
                from += block;
        }
    }
    return 0;
}

INSIDE int read_plain(int work, int kind, const uint8_t *const *chunks, int64_t num_chunks, int64_t n, double factor, float most,
                      const float *from, uint8_t *to)
{
    const int size_bytes = kind == FP32 ? 4 : 2;
    for (int64_t chunk = 0; chunk < num_chunks; chunk++) {
        for (int64_t begin = 0; begin < n; begin += MOST_BLOCK) {
            const int num = n - begin < MOST_BLOCK ? (int)(n - begin) : MOST_BLOCK;
            float values[MOST_BLOCK];
            uint16_t halves[MOST_BLOCK];
            uint32_t largest = 0, is_wrong = 0;
            memcpy(kind == FP32 ? (void *)values : (void *)halves, chunks[chunk] + size_bytes * begin, (size_t)(size_bytes * num));
            for (int i = 0; i < num; i++) {
                if (kind == FP16) {
                    is_wrong |= (halves[i] & 0x7C00u) == 0x7C00u; /* not a number, or infinite */
                    values[i] = of_half(halves[i]);
                }
                uint32_t size = bits_of(values[i]) & MAGNITUDE;
                largest = size > largest ? size : largest;
            }
            if (is_wrong || largest > bits_of(most))
                return 1;
            for (int i = 0; i < num; i++)
                use(work, values[i], i, factor, from, to);
            to += (work == ADD_WIDE ? 8 : 4) * num;
            if (work == STEP)
                from += num;
        }
    }
    return 0;
}

INSIDE int read_chunks(int work, int kind, const uint8_t *const *chunks, int64_t num_chunks, int64_t n, double factor, float most,
                       const float *from, void *to)
{
    switch (kind) { /* a loop of its own for each */
    case INT8: return read_blocks(work, INT8, chunks, num_chunks, n, factor, most, from, to);
    case INT4: return read_blocks(work, INT4, chunks, num_chunks, n, factor, most, from, to);
    case E3M0: return read_blocks(work, E3M0, chunks, num_chunks, n, factor, most, from, to);
    case FP32: return read_plain(work, FP32, chunks, num_chunks, n, factor, most, from, to);
    case FP16: return read_plain(work, FP16, chunks, num_chunks, n, factor, most, from, to);
    default: return 1;
    }
}

/* (values - minus), or values where minus is null, (num_chunks * n,), as chunks in `out`. */
EVERY_MACHINE int potluck_encode(
    int kind, const float *values, const float *minus, int64_t num_chunks, int64_t n, uint8_t *out)
{
    switch (kind) {
    case INT8: return encode_blocks(INT8, values, minus, num_chunks, n, out);
    case INT4: return encode_blocks(INT4, values, minus, num_chunks, n, out);
    case E3M0: return encode_blocks(E3M0, values, minus, num_chunks, n, out);
    case FP32: return encode_plain(FP32, values, minus, num_chunks * n, out);
    case FP16: return encode_plain(FP16, values, minus, num_chunks * n, out);
    default: return 1;
    }
}

/* The values of chunks into `out`, (num_chunks * n,). */
EVERY_MACHINE int potluck_decode(int kind, const uint8_t *const *chunks, int64_t num_chunks, int64_t n, float *out)
{
    return read_chunks(DECODE, kind, chunks, num_chunks, n, 1.0, FLT_MAX, 0, out);
}

/* sum + values * weight into `sum`, (num_chunks * n,): a multiplication, then an addition. 1 where a value could be beyond `most`. */
EVERY_MACHINE int potluck_add(
    int kind, const uint8_t *const *chunks, int64_t num_chunks, int64_t n, float weight, float most, float *sum)
{
    return read_chunks(ADD, kind, chunks, num_chunks, n, weight, most, 0, sum);
}

/* The same in double precision. */
EVERY_MACHINE int potluck_add_wide(
    int kind, const uint8_t *const *chunks, int64_t num_chunks, int64_t n, double weight, float most, double *sum)
{
    return read_chunks(ADD_WIDE, kind, chunks, num_chunks, n, weight, most, 0, sum);
}

/* from - values * rate into `to`, (num_chunks * n,) both: a multiplication, then a subtraction. */
EVERY_MACHINE int potluck_step(
    int kind, const uint8_t *const *chunks, int64_t num_chunks, int64_t n, float rate, const float *from, float *to)
{
    return read_chunks(STEP, kind, chunks, num_chunks, n, rate, FLT_MAX, from, to);
}

enum { SPARSE_BLOCK = 4096, GROUP = 16 };

INSIDE int64_t num_least(const int32_t *sizes, int32_t least)
{
    int32_t num = 0;
    for (int i = 0; i < SPARSE_BLOCK; i++)
        num += sizes[i] >= least;
    return num;
}

/* Where the `num` largest of each block of 4096 values lie by absolute value, ascending, equal ones by the lower place; 4096 in the
   places that are left where fewer are not zero. 1 where a value is not finite. */
EVERY_MACHINE int potluck_largest(const float *values, int64_t num_blocks, int64_t num, int64_t *places)
{
    int32_t sizes[SPARSE_BLOCK];
    for (int64_t b = 0; b < num_blocks; b++, values += SPARSE_BLOCK, places += num) {
        int32_t most = 0;
        for (int i = 0; i < SPARSE_BLOCK; i++) {
            sizes[i] = (int32_t)(bits_of(values[i]) & MAGNITUDE);
            most = sizes[i] > most ? sizes[i] : most;
        }
        if ((uint32_t)most >= INFINITY_BITS)
            return 1;
        /* The bits of floats without their sign are ordered as their sizes are: the least size that is kept, from its highest bit on. */
        int32_t least = 0;
        int64_t found = SPARSE_BLOCK;
        for (int32_t bit = 1 << 30; bit && found > num; bit >>= 1) {
            int64_t with_bit = (least | bit) > most ? 0 : num_least(sizes, least | bit);
            if (with_bit >= num) {
                least |= bit;
                found = with_bit;
            }
        }
        if (least == 0) {
            least = 1;
            found = num_least(sizes, least);
        }
        int32_t num_equal = found > num ? (int32_t)(num - num_least(sizes, least + 1)) : SPARSE_BLOCK, written = 0;
        int32_t at[SPARSE_BLOCK + 1];
        for (int begin = 0; begin < SPARSE_BLOCK; begin += GROUP) {
            int32_t any = 0;
            for (int i = begin; i < begin + GROUP; i++)
                any |= sizes[i] >= least;
            for (int i = begin; any && i < begin + GROUP; i++) { /* without a branch, which would be guessed wrong at each that is kept */
                int32_t is_equal = sizes[i] == least;
                at[written] = i;
                written += (sizes[i] > least) | (is_equal & (num_equal > 0));
                num_equal -= is_equal;
            }
        }
        for (int64_t i = 0; i < num; i++)
            places[i] = i < written ? at[i] : SPARSE_BLOCK;
    }
    return 0;
}

enum { LANES = 8, PART = 4, PARTS = LANES / PART, TILE = 128, MOST_ROWS = 64, TOGETHER = 4 };
/* Written out, for a compiler would keep the sums in memory. */
typedef double part_of __attribute__((vector_size(8 * PART)));

/* The products of `one` with `num` rows, value by value: number k of them is added to the sum of lane k mod 8, k ascending. */
INSIDE void add_products(const double *one, const double (*rows)[TILE], const int num, int num_values, double *sums)
{
    part_of own[TOGETHER][PARTS], first, second;
    for (int j = 0; j < num; j++)
        memcpy(own[j], sums + j * LANES, sizeof(own[j]));
    for (int k = 0; k < num_values; k += LANES)
        for (int part = 0; part < PARTS; part++) {
            memcpy(&first, one + k + part * PART, sizeof(first));
            for (int j = 0; j < num; j++) {
                memcpy(&second, rows[j] + k + part * PART, sizeof(second));
                own[j][part] = own[j][part] + first * second;
            }
        }
    for (int j = 0; j < num; j++)
        memcpy(sums + j * LANES, own[j], sizeof(own[j]));
}

/* Into sums[i][j][lane] of each pair j <= i of rows of n values, as `add_products` says. The caller has set them to 0, and joins the
   lanes. A product of two single precision numbers is exact in double. */
EVERY_MACHINE int potluck_gram(const float *rows, int64_t num_rows, int64_t n, double *sums)
{
    double wide[MOST_ROWS][TILE];
    if (num_rows > MOST_ROWS)
        return 1;
    for (int64_t begin = 0; begin < n; begin += TILE) {
        const int num = n - begin < TILE ? (int)(n - begin) : TILE, padded = (num + LANES - 1) / LANES * LANES;
        for (int64_t i = 0; i < num_rows; i++) {
            for (int k = 0; k < num; k++)
                wide[i][k] = (double)rows[i * n + begin + k];
            for (int k = num; k < padded; k++)
                wide[i][k] = 0.0;
        }
        for (int64_t i = 0; i < num_rows; i++) {
            double *own = sums + i * num_rows * LANES;
            int64_t j = 0;
            for (; j + TOGETHER <= i + 1; j += TOGETHER)
                add_products(wide[i], wide + j, TOGETHER, padded, own + j * LANES);
            for (; j <= i; j++)
                add_products(wide[i], wide + j, 1, padded, own + j * LANES);
        }
    }
    return 0;
}

/* Of the source that this was built from; the program compares it with the source that it was installed with. */
const char *potluck_source(void) { return SOURCE; }
