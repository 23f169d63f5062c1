"""Writes straight-line Python that encodes or decodes one message in one version, and compiles it.

Nested structs are written out in place, so a message costs one call however deep it is, and consecutive fields of fixed
size are one struct pack or unpack. The decoder's source trusts nothing: every length and count is compared with the
bytes that are left before it is used, and a count must have room for that many of its smallest elements.

A flexible version (KIP-482) has varint lengths, one more than the length so that 0 is null, and ends each struct with
tagged fields. An older one has int16 lengths for strings and int32 for all else, -1 being null.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from struct import Struct as Layout
from struct import unpack_from
from typing import Any, NamedTuple, TypeAlias, cast

from penstock.protocol import primitives
from penstock.protocol.schema import NEW_LIST, Array, Blob, Field, Fixed, Nested, Struct, Text, WireType

Decoder: TypeAlias = Callable[[memoryview, int, int], tuple[Any, int]]
"""(view, start, size) -> (message, where it ends)"""
Encoder: TypeAlias = Callable[[Any, list[Any], list[int]], None]
"""(message, pieces to append to, indexes of the pieces that are not bytes but a RecordsSpan)"""


def compile_decoder(struct: type[Struct], version: int, *, flexible: bool) -> Decoder:
    source = _DecoderSource(version, flexible)
    source.line("def codec(view, at, size):")
    with source.indented():
        source.struct(struct, "message", f"{struct.__name__} v{version}")
        source.flush()
        source.line("return message, at")
    return cast(Decoder, source.compiled(f"decode {struct.__name__} v{version}"))


def compile_encoder(struct: type[Struct], version: int, *, flexible: bool) -> Encoder:
    source = _EncoderSource(version, flexible)
    source.line("def codec(message, out, spans):")
    with source.indented():
        source.struct(struct, "message")
        source.flush()
        source.line("return None")
    return cast(Encoder, source.compiled(f"encode {struct.__name__} v{version}"))


class _Source:
    """Source text in the making, and the objects it refers to by name."""

    def __init__(self, version: int, flexible: bool) -> None:
        self.version = version
        self.flexible = flexible
        self._lines: list[str] = []
        self._indent = ""
        self._names: dict[str, Any] = {}
        self._fresh = 0

    def line(self, text: str) -> None:
        self._lines.append(self._indent + text)

    @contextmanager
    def indented(self) -> Iterator[None]:
        outer = self._indent
        self._indent += "    "
        yield
        self._indent = outer

    def fresh(self, stem: str) -> str:
        self._fresh += 1
        return f"{stem}_{self._fresh}"

    def constant(self, value: Any, stem: str) -> str:
        name = self.fresh(stem)
        self._names[name] = value
        return name

    def helper(self, function: Callable[..., Any]) -> str:
        self._names[function.__name__] = function
        return function.__name__

    def compiled(self, title: str) -> Any:
        exec(compile("\n".join(self._lines), f"<{title}>", "exec"), self._names)
        return self._names["codec"]

    def fields(self, struct: type[Struct]) -> tuple[list[Field], list[Field], list[Field]]:
        """The struct's fields in this version: the regular ones, the tagged ones by tag, and those it does not have."""
        present = [field for field in struct.FIELDS if field.versions.has(self.version)]
        regular = [field for field in present if field.tag is None]
        tagged = sorted((field for field in present if field.tag is not None), key=lambda field: field.tag or 0)
        absent = [field for field in struct.FIELDS if not field.versions.has(self.version)]
        return regular, tagged, absent


class _DecoderSource(_Source):
    def __init__(self, version: int, flexible: bool) -> None:
        super().__init__(version, flexible)
        self._names["new"] = object.__new__
        self._run: list[tuple[str, str]] = []  # format and target of fields that are unpacked together

    def flush(self) -> None:
        run, self._run = self._run, []
        if not run:
            return
        layout = Layout(">" + "".join(format for format, _ in run))
        targets = ", ".join(target for _, target in run)
        if layout.format == ">B":
            self.line(f"{targets} = view[at]")  # a good deal quicker than unpacking one byte
        else:
            self.line(f"{targets}, = {self.constant(layout.unpack_from, 'unpack')}(view, at)")
        self.line(f"at += {layout.size}")

    def struct(self, struct: type[Struct], target: str, where: str) -> None:
        self.line(f"{target} = new({self.constant(struct, 'Struct')})")
        regular, tagged, absent = self.fields(struct)
        for field in absent + tagged:
            self.line(f"{target}.{field.name} = {self.default(field)}")
        for field in regular:
            self.value(field, f"{target}.{field.name}", f"{where}: {field.name}")
        if self.flexible:
            self.tagged_fields(tagged, target, where)

    def default(self, field: Field) -> str:
        if field.default is NEW_LIST:
            return "[]"
        if isinstance(field.default, type):
            return f"{self.constant(field.default, 'Struct')}()"
        return repr(field.default)

    def value(self, field: Field, target: str, where: str) -> None:
        nullable = field.nullable.has(self.version)
        if nullable and isinstance(field.wire, Nested):
            self.nullable_struct(field.wire, target, where, is_tagged=field.tag is not None)
        else:
            self.wire_value(field.wire, target, where, nullable=nullable)

    def wire_value(self, wire: WireType, target: str, where: str, *, nullable: bool = False) -> None:
        match wire:
            case Fixed():
                self._run.append((wire.format, target))
            case Text():
                decoded = f"view[at:stop].tobytes().decode('utf-8', '{primitives.UNREADABLE}')"
                self.bytes_value("h", decoded, target, where, nullable=nullable, at_most=primitives.MAX_STRING_BYTES)
            case Blob():
                copied = "view[at:stop]" if wire.is_records else "view[at:stop].tobytes()"
                self.bytes_value("i", copied, target, where, nullable=nullable)
            case Array():
                self.array(wire.element, target, where, nullable=nullable)
            case Nested():
                struct = self.fresh("struct")
                self.struct(wire.struct, struct, where)
                self.line(f"{target} = {struct}")

    def prefix(self, legacy_format: str) -> str:
        """Reads a length or count, -1 for null, together with the fields before it; the name of its variable."""
        count = self.fresh("count")
        self._run.append(("B" if self.flexible else legacy_format, count))
        self.flush()
        if self.flexible:
            self.varint_tail(count)
            self.line(f"{count} -= 1")
        return count

    def varint_tail(self, first: str) -> None:
        self.line(f"if {first} > 127:")
        self.line(f"    {first}, at = {self.helper(primitives.varint_tail)}(view, at, {first})")

    def bytes_value(
        self,
        legacy_format: str,
        expression: str,
        target: str,
        where: str,
        *,
        nullable: bool,
        at_most: int | None = None,
    ) -> None:
        length = self.prefix(legacy_format)
        with self.unless_null(length, target, nullable=nullable):
            too_long = f"{length} > {at_most} or " if self.flexible and at_most is not None else ""
            self.line(f"stop = at + {length}")
            self.line(f"if {too_long}not at <= stop <= size:")
            self.line(f"    raise {self.helper(primitives.bad_length)}({where!r}, {length}, size - at)")
            self.line(f"{target} = {expression}")
            self.line("at = stop")

    @contextmanager
    def unless_null(self, count: str, target: str, *, nullable: bool) -> Iterator[None]:
        if not nullable:
            yield
            return
        self.line(f"if {count} == -1:")
        self.line(f"    {target} = None")
        self.line("else:")
        with self.indented():
            yield

    def array(self, element: WireType, target: str, where: str, *, nullable: bool) -> None:
        count = self.prefix("i")
        with self.unless_null(count, target, nullable=nullable):
            self.line(f"if {count} < 0 or {count} * {self.smallest(element)} > size - at:")
            self.line(f"    raise {self.helper(primitives.bad_count)}({where!r}, {count}, size - at)")
            if isinstance(element, Fixed) and not element.format.endswith("s"):
                self._names["unpack_from"] = unpack_from
                self.line(f"{target} = list(unpack_from(f'>{{{count}}}{element.format}', view, at))")
                self.line(f"at += {count} * {element.size}")
                return
            elements, one = self.fresh("elements"), self.fresh("element")
            self.line(f"{elements} = {target} = []")
            self.line(f"for _ in range({count}):")
            with self.indented():
                if isinstance(element, Nested):
                    self.struct(element.struct, one, where)
                else:
                    self.wire_value(element, one, where)
                self.flush()
                self.line(f"{elements}.append({one})")

    def nullable_struct(self, wire: Nested, target: str, where: str, *, is_tagged: bool) -> None:
        """Null is a marker of -1; in a tagged field the marker is a varint, and 0."""
        marker, struct = self.fresh("marker"), self.fresh("struct")
        self._run.append(("B" if is_tagged else "b", marker))
        self.flush()
        if is_tagged:
            self.varint_tail(marker)
        self.line(f"if {marker} {'==' if is_tagged else '<'} 0:")
        self.line(f"    {target} = None")
        self.line("else:")
        with self.indented():
            self.struct(wire.struct, struct, where)
            self.flush()
            self.line(f"{target} = {struct}")

    def tagged_fields(self, known: list[Field], target: str, where: str) -> None:
        count = self.fresh("tags")
        self._run.append(("B", count))
        self.flush()
        self.line(f"if {count}:")
        with self.indented():
            if not known:
                self.line(f"at = {self.helper(primitives.skip_tagged_fields)}(view, at, size, {count})")
                return
            tag, start, end = self.fresh("tag"), self.fresh("start"), self.fresh("end")
            fields = self.helper(primitives.tagged_fields)
            self.varint_tail(count)
            self.line(f"{end} = at")  # a long varint may still say 0
            self.line(f"for {tag}, {start}, {end} in {fields}(view, at, size, {count}):")
            with self.indented():
                for field in known:
                    self.line(f"if {tag} == {field.tag}:")
                    with self.indented():
                        self.tagged_field(field, f"{target}.{field.name}", f"{where}: {field.name}", start, end)
            self.line(f"at = {end}")

    def tagged_field(self, field: Field, target: str, where: str, start: str, end: str) -> None:
        self.line(f"at = {start}")
        self.value(field, target, where)
        self.flush()
        self.line(f"if at != {end}:")
        bad = self.helper(primitives.bad_tagged_length)
        self.line(f"    raise {bad}({where!r}, {end} - {start}, at - {start})")

    def smallest(self, wire: WireType) -> int:
        """The least number of bytes that a value can take."""
        match wire:
            case Fixed():
                return wire.size
            case Nested():
                regular, _, _ = self.fields(wire.struct)
                return sum(map(self.smallest_field, regular)) + self.flexible
            case Text():
                return 1 if self.flexible else 2
        return 1 if self.flexible else 4

    def smallest_field(self, field: Field) -> int:
        if isinstance(field.wire, Nested) and field.nullable.has(self.version):
            return 1
        return self.smallest(field.wire)


class _Packed(NamedTuple):
    """A value in a run of values that are packed together; an array's `format` is that of an element."""

    format: str
    expression: str
    array_length: str | None = None


class _EncoderSource(_Source):
    def __init__(self, version: int, flexible: bool) -> None:
        super().__init__(version, flexible)
        self._names["VARINTS"] = primitives.VARINTS
        self._out = "out"
        self._run: list[_Packed] = []

    def flush(self) -> None:
        run, self._run = self._run, []
        if any(item.array_length for item in run):
            self.append_with_arrays(run)
        elif any(item.expression for item in run):
            layout = Layout(">" + "".join(item.format for item in run))
            arguments = ", ".join(item.expression for item in run if item.expression)
            self.append(f"{self.constant(layout.pack, 'pack')}({arguments})")
        elif run:
            self.append(repr(bytes(len(run))))

    def append(self, expression: str) -> None:
        self.line(f"{self._out}.append({expression})")

    def append_with_arrays(self, run: list[_Packed]) -> None:
        """Packs numbers and arrays of numbers at once, by a layout that is looked up by the arrays' lengths."""
        head = ""
        arrays: list[tuple[str, str]] = []
        arguments, counts, lengths = [], [], []
        for item in run:
            if item.array_length:
                count = self.fresh("count")
                arrays.append((item.format, ""))
                counts.append(count)
                lengths.append(item.array_length)
                arguments += [count, f"*{item.expression}"]
                continue
            if arrays:
                element, after = arrays[-1]
                arrays[-1] = (element, after + item.format)
            else:
                head += item.format
            if item.expression:
                arguments.append(item.expression)
        layouts = self.constant(primitives.ArrayLayouts(head, arrays, compact=self.flexible), "layouts")
        self.line(f"pack, {', '.join(counts)} = {layouts}[{', '.join(lengths)},]")
        self.append(f"pack({', '.join(arguments)})")

    def struct(self, struct: type[Struct], source: str) -> None:
        regular, tagged, _ = self.fields(struct)
        for field in regular:
            self.value(field, f"{source}.{field.name}")
        if not self.flexible:
            return
        if tagged:
            self.tagged_fields(tagged, source)
        else:
            self._run.append(_Packed("x", ""))

    def value(self, field: Field, source: str) -> None:
        nullable = field.nullable.has(self.version)
        if nullable and isinstance(field.wire, Nested):
            self.nullable_struct(field.wire, source, is_tagged=field.tag is not None)
        else:
            self.wire_value(field.wire, source, nullable=nullable)

    def wire_value(self, wire: WireType, source: str, *, nullable: bool = False) -> None:
        match wire:
            case Fixed():
                self._run.append(_Packed(wire.format, source))
            case Text():
                self.text(source, nullable=nullable)
            case Blob():
                self.blob(wire, source, nullable=nullable)
            case Array():
                self.array(wire.element, source, nullable=nullable)
            case Nested():
                struct = self.fresh("struct")
                self.line(f"{struct} = {source}")
                self.struct(wire.struct, struct)

    def prefix(self, legacy_format: str, length: str) -> None:
        """A length or count, -1 for null."""
        if self.flexible:
            self.flush()
            self.append(f"VARINTS[{length} + 1]")
        else:
            self._run.append(_Packed(legacy_format, length))
            self.flush()

    def text(self, source: str, *, nullable: bool) -> None:
        encoded, length = self.fresh("encoded"), self.fresh("length")
        if nullable:
            value = self.fresh("value")
            self.line(f"{value} = {source}")
            self.line(f"{encoded} = b'' if {value} is None else {value}.encode()")
            self.line(f"{length} = -1 if {value} is None else len({encoded})")
        else:
            self.line(f"{encoded} = {source}.encode()")
            self.line(f"{length} = len({encoded})")
        self.prefix("h", length)
        self.append(encoded)

    def blob(self, wire: Blob, source: str, *, nullable: bool) -> None:
        value, length = self.fresh("value"), self.fresh("length")
        measured = f"{self.helper(primitives.records_length) if wire.is_records else 'len'}({value})"
        self.line(f"{value} = {source}")
        self.line(f"{length} = -1 if {value} is None else {measured}" if nullable else f"{length} = {measured}")
        self.prefix("i", length)
        self.line(f"if {length} > 0:")
        with self.indented():
            if wire.is_records:
                assert self._out == "out", "a tagged field has no records"
                self.line(f"if not {self.helper(primitives.is_bytes_like)}({value}):")
                self.line("    spans.append(len(out))")
            self.append(value)

    def array(self, element: WireType, source: str, *, nullable: bool) -> None:
        values = self.fresh("values")
        self.line(f"{values} = {source}")
        length = f"(-1 if {values} is None else len({values}))" if nullable else f"len({values})"
        elements = f"({values} or ())" if nullable else values
        if isinstance(element, Fixed):
            self._run.append(_Packed(element.format, elements, length))
            return
        self.prefix("i", length)
        one = self.fresh("element")
        self.line(f"for {one} in {elements}:")
        with self.indented():
            if isinstance(element, Nested):
                self.struct(element.struct, one)
            else:
                self.wire_value(element, one)
            self.flush()

    def nullable_struct(self, wire: Nested, source: str, *, is_tagged: bool) -> None:
        value = self.fresh("value")
        self.line(f"{value} = {source}")
        self._run.append(_Packed("b", f"{0 if is_tagged else -1} if {value} is None else 1"))
        self.flush()
        self.line(f"if {value} is not None:")
        with self.indented():
            self.struct(wire.struct, value)
            self.flush()

    def tagged_fields(self, tagged: list[Field], source: str) -> None:
        """How many are sent, packed with what comes before, then those in the order of their tags."""
        sent = [self.is_sent(field, f"{source}.{field.name}") for field in tagged]
        count = self.fresh("tags")
        self.line(f"{count} = {' + '.join(f'({condition})' for condition in sent)}")
        if self._run:
            self._run.append(_Packed("B", count))
            self.flush()
        else:
            self.append(f"VARINTS[{count}]")
        self.line(f"if {count}:")
        with self.indented():
            for field, condition in zip(tagged, sent, strict=True):
                self.line(f"if {condition}:")
                with self.indented():
                    self.tagged_field(field, f"{source}.{field.name}")

    def is_sent(self, field: Field, source: str) -> str:
        if field.default is None:
            return f"{source} is not None"
        if isinstance(field.default, type):
            return f"{source} != {self.constant(field.default(), 'empty')}"
        return f"len({source}) > 0" if field.default is NEW_LIST else f"{source} != {field.default!r}"

    def tagged_field(self, field: Field, source: str) -> None:
        outer, self._out = self._out, self.fresh("parts")
        self.line(f"{self._out} = []")
        self.value(field, source)
        self.flush()
        content = self.fresh("content")
        self.line(f"{content} = b''.join({self._out})")
        self._out = outer
        self.append(f"VARINTS[{field.tag}] + VARINTS[len({content})]")
        self.append(content)
