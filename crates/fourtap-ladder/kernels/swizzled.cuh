// Tiles of rows in shared memory whose pieces of 16 bytes are exchanged by exclusive or with the row's number, so that eight
// rows' pieces of one place are in different banks and ldmatrix never waits: within spans of 128 bytes, or of 64 where that
// is all there is of a row and two rows share a line of banks. A tile begins at a multiple of 128 bytes.

constexpr u32 ROW_BYTES = 2 * HEAD, SPAN = HEAD % 64 == 0 ? 8 : 4; // pieces

__device__ __forceinline__ u32 place_of(u32 row, u32 piece) {
    const u32 turn = SPAN == 8 ? row % 8 : row / 2 % 4;
    return row * ROW_BYTES + piece / SPAN * SPAN * 16 + (piece % SPAN ^ turn) * 16;
}

// The address of a piece so many further, an even number, than piece 0 or 1 of a row.
__device__ __forceinline__ u32 further(u32 address, u32 pieces) {
    return (address ^ pieces % SPAN * 16) + pieces / SPAN * SPAN * 16;
}

// Asks for SIZE rows of a plane from row `first` on; those past `rows` become zero.
template <int SIZE, int THREADS>
__device__ __forceinline__ void ask_for_rows(u32 tile, const u16 *plane, int first, int rows) {
    constexpr int PIECES = HEAD / 8;
#pragma unroll
    for (int begin = 0; begin < SIZE * PIECES; begin += THREADS) {
        const int i = begin + threadIdx.x, row = i / PIECES, piece = i % PIECES;
        if (SIZE * PIECES % THREADS != 0 && i >= SIZE * PIECES) break;
        const bool there = first + row < rows;
        const u16 *source = plane + static_cast<u64>(there ? first + row : 0) * HEAD + 8 * piece;
        copy_or_clear(tile + place_of(row, piece), source, there);
    }
}
