"""The ingest process, see `contig.transport.ingest`."""

from .ingest import main

main()
