"""What a request carries: its body within the limits, then its rows as cells."""

from ctr.api.requests.arrow import read_table, write_table
from ctr.api.requests.body import (
    ARROW,
    ByteLimit,
    Limits,
    RequestError,
    check_arrow_content,
    check_content,
    decompressed,
    is_gzip,
    read_body,
    setting_of,
)
from ctr.api.requests.json_rows import JsonRows, UnknownFields, parse_rows, require_brief
from ctr.api.requests.open_inference import OUTPUT, InferRequest, read_infer
