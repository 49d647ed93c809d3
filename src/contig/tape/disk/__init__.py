"""Storages in files: extents of rows, and an index of them in SQLite.

    layout.json            what a record is                    description
    extents/NNNNNNNN.rec   rows, each with its checksum        extents; extent_folders: since a load
    extents/NNNNNNNN.bin   bytes of leaves of any size, or     stored_bytes
                           observations, each once             stored_slots
    index.sqlite           runs, fields, producers, bounds     index, of index_tables, index_pages,
                                                               index_fields
    committed              what was committed last             marker
    lock                   who writes                          directory
    quarantine/            what was put aside                  rows_beyond, repair

Every call that touches one of them is in `files`, or is SQLite's own (`sqlite`).

Append. A row can be sampled when the tape shows it; it survives a crash when it is committed:

    StagedWriter ──> Appender ──> Extents.write ──> tape ──> Committer ──> DiskIndex ──> Marker
    packs it, one    appender     pwrite, bytes     shows    many as one,  a trans-      says so
    at a time                     before rows       it       [fsync]       action

    Retention moves the tail past rows beyond the bounds; FileRemover deletes files after the commit

Open (`opening`; `lifetime` closes). Who writes gets a committer; `rows_beyond` are cut off:

    Directory.lock ──> description ──> DiskIndex ──> Extents ──> TapeMirror.take_in ──> Committer

Follow, where another process writes (`following`): what it committed comes behind what is known.
What is damaged is found when it is read, and set aside (`quarantine`).

Load a checkpoint: its rows (`linked_rows`, `linked_bytes`) are brought in beside those that are
there (`loading`, `loading_slots`), then one transaction makes them count (`restoring`); in a new
storage there are more steps (`first_load`).

Repair (`repair`): every row is looked at, and an index is made anew of what can be read.
"""

from . import files
from .memmap import LazyMemmapStorage
from .storage import DiskStorage

__all__ = ["DiskStorage", "LazyMemmapStorage", "files"]
