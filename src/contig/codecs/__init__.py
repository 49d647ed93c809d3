"""How a leaf is kept smaller than its numbers: encoded where the row is made, decoded when sampled.

"zstd" | "zstd:19"   any leaf                               lossless   extra zstd
"lz4" | "lz4:9"      any leaf                               lossless   extra lz4
"png" | "png:9"      uint8 or uint16 images                 lossless   extra images
"qoi"                uint8 images of 3 or 4 channels        lossless   extra images
"jpeg:90"            uint8 images, gray or of 3 channels    lossy      extra images

Images are ``[height, width]`` or ``[height, width, channels]``. Codecs are immutable and safe to
share between threads; their libraries are imported when something is encoded or decoded.
"""

from .codec import Codec
from .names import codec_of
from .rows import check_encoded, check_leaf, decode_rows, encode_row, encode_rows

__all__ = [
    "Codec",
    "check_encoded",
    "check_leaf",
    "codec_of",
    "decode_rows",
    "encode_row",
    "encode_rows",
]
