"""Record batches for fuzzing: sound ones, and ones with something wrong at any depth, mostly under a right checksum."""

from random import Random

from penstock.protocol.batch import HEADER_BYTES, BatchHeader, Codec, read_header
from penstock.protocol.compression import compress
from penstock.protocol.records import Record, build_batch, encode_records
from tests.badinput.batches import now_ms, of_section, with_fields
from tests.badinput.fuzzing import EXTREMES, spoilt

_FORMATS = dict(zip(BatchHeader._fields, "qiibIhiqqqhii", strict=True))
_SPOILT_FIELDS = [field for field in _FORMATS if field != "crc"]
_BLOBS = (None, b"", b"v", b"a longer value " * 5, bytes(300))
_HEADERS = ((), (), (("h", b"1"),), (("", None), ("ü", b""), ("h", b"2")))


def a_sound_batch(random: Random) -> bytes:
    records = [_a_record(random) for _ in range(random.choice((1, 1, 2, 5)))]
    batch = build_batch(records, codec=_a_codec(random))
    if random.random() < 0.8:
        return bytes(batch)
    return with_fields(batch, producer_id=random.randrange(10**6), producer_epoch=0, base_sequence=0)


def a_spoilt_batch(random: Random) -> bytes:
    kinds = (_spoilt_anywhere, _with_spoilt_section, _with_spoilt_records, _with_odd_fields, _with_odd_fields)
    return random.choice(kinds)(random)


def _a_record(random: Random) -> Record:
    moment = now_ms() - random.choice((0, 0, 1, 1000))
    return Record(random.choice(_BLOBS), random.choice(_BLOBS), random.choice(_HEADERS), moment)


def _a_codec(random: Random) -> Codec:
    return Codec(random.choice((Codec.NONE, Codec.NONE, *Codec)))


def _spoilt_anywhere(random: Random) -> bytes:
    """The checksum is most likely wrong."""
    return spoilt(a_sound_batch(random), random)


def _with_spoilt_section(random: Random) -> bytes:
    batch = a_sound_batch(random)
    header = read_header(batch)
    return of_section(spoilt(batch[HEADER_BYTES:], random), header.records_count, attributes=header.attributes)


def _with_spoilt_records(random: Random) -> bytes:
    """What is wrong is seen only after decompression."""
    count, codec = random.choice((1, 2, 5)), _a_codec(random)
    moment = now_ms()
    section = spoilt(bytes(encode_records([_a_record(random) for _ in range(count)], moment)), random)
    return of_section(bytes(compress(codec, section)), count, attributes=int(codec), base_timestamp=moment)


def _with_odd_fields(random: Random) -> bytes:
    """Values of the header that nobody sends, or none that fit."""
    fields = {}
    for field in random.sample(_SPOILT_FIELDS, random.choice((1, 1, 2, 3))):
        fields[field] = random.choice((*EXTREMES[_FORMATS[field]], random.randrange(256) % 128))
    return with_fields(a_sound_batch(random), **fields)
