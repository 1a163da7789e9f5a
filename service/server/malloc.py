"""Settings of the memory allocator of the GNU C library."""

import ctypes

# Options of mallopt: free memory that is kept, and the size from which a block has its own mapping.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
KEPT_BYTES, LARGE_BLOCK_BYTES = 8 << 20, 4 << 20


def keep_freed_blocks() -> None:
    """Make the GNU allocator keep freed blocks instead of returning them to the kernel.

    Clearing a megabyte of new pages takes as long as learning hundreds of rows. By default the
    GNU C library keeps twice its largest block so far, and the blocks of request bodies come
    and go together. Other C libraries are left as they are.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_TRIM_THRESHOLD, KEPT_BYTES)
        set_option(_MMAP_THRESHOLD, LARGE_BLOCK_BYTES)
