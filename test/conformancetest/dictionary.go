// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package conformancetest

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pprofile"

	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
)

// tables checks that each table begins with its zero entry and has no duplicates. It also
// checks that strings are UTF-8 and that links have ids.
func (c *checker) tables() {
	table(c, "string", c.dict.StringTable().Len(), func(i int) string { return c.dict.StringTable().At(i) }, "")
	table(c, "attribute", c.dict.AttributeTable().Len(), func(i int) string {
		a := c.dict.AttributeTable().At(i)
		return fmt.Sprint(a.KeyStrindex(), a.UnitStrindex(), valueKey(a.Value()))
	}, fmt.Sprint(0, 0, valueKey(pcommon.NewValueEmpty())))
	table(c, "function", c.dict.FunctionTable().Len(), func(i int) string { return functionKey(c.dict.FunctionTable().At(i)) },
		functionKey(pprofile.NewFunction()))
	table(c, "mapping", c.dict.MappingTable().Len(), func(i int) string { return mappingKey(c.dict.MappingTable().At(i)) },
		mappingKey(pprofile.NewMapping()))
	table(c, "location", c.dict.LocationTable().Len(), func(i int) string { return locationKey(c.dict.LocationTable().At(i)) },
		locationKey(pprofile.NewLocation()))
	table(c, "stack", c.dict.StackTable().Len(), func(i int) string {
		return fmt.Sprint(c.dict.StackTable().At(i).LocationIndices().AsRaw())
	}, fmt.Sprint([]int32{}))
	table(c, "link", c.dict.LinkTable().Len(), func(i int) string { return linkKey(c.dict.LinkTable().At(i)) },
		linkKey(pprofile.NewLink()))

	for i, s := range c.dict.StringTable().All() {
		if !utf8.ValidString(s) {
			c.broken(UTF8, "string %d: %q", i, s)
		}
	}
	for i, l := range c.dict.LinkTable().All() {
		if i > 0 && (l.TraceID().IsEmpty() || l.SpanID().IsEmpty()) {
			c.broken(LinkIDs, "link %d lacks its trace id or span id", i)
		}
	}
}

func table(c *checker, name string, n int, key func(int) string, zero string) {
	if n == 0 || key(0) != zero {
		c.broken(ZeroEntry, "the %s table does not start with its zero entry", name)
	}
	seen := make(map[string]int, n)
	for i := range n {
		k := key(i)
		if first, ok := seen[k]; ok {
			c.broken(Duplicate, "%ss %d and %d are the same", name, first, i)
			continue
		}
		seen[k] = i
	}
}

func valueKey(v pcommon.Value) string { return v.Type().String() + " " + v.AsString() }

func functionKey(f pprofile.Function) string {
	return fmt.Sprint(f.NameStrindex(), f.SystemNameStrindex(), f.FilenameStrindex(), f.StartLine())
}

func mappingKey(m pprofile.Mapping) string {
	return fmt.Sprint(m.MemoryStart(), m.MemoryLimit(), m.FileOffset(), m.FilenameStrindex(), m.AttributeIndices().AsRaw())
}

func locationKey(l pprofile.Location) string {
	k := fmt.Sprint(l.MappingIndex(), l.Address(), l.AttributeIndices().AsRaw())
	for _, line := range l.Lines().All() {
		k += fmt.Sprint(";", line.FunctionIndex(), line.Line(), line.Column())
	}
	return k
}

func linkKey(l pprofile.Link) string { return l.TraceID().String() + " " + l.SpanID().String() }

// orphans reports the entries that no profile uses.
func (c *checker) orphans() {
	for _, name := range []string{"stack", "location", "mapping", "function", "link", "attribute", "string"} {
		for i, used := range c.used[name] {
			if i > 0 && !used {
				detail := ""
				if name == "string" {
					detail = fmt.Sprintf(": %q", c.dict.StringTable().At(i))
				}
				c.broken(Orphan, "%s %d is used by nothing%s", name, i, detail)
			}
		}
	}
}

// stack checks a stack and all entries that the stack refers to.
func (c *checker) stack(i int32, where string) {
	ok, first := c.use("stack", i, where)
	if !ok {
		return
	}
	locations := c.dict.StackTable().At(int(i)).LocationIndices()
	if locations.Len() == 0 {
		c.broken(NoStack, "%s has no stack", where)
	}
	if !first {
		return
	}
	where = fmt.Sprintf("%s, stack %d", where, i)
	if locations.Len() > maxStackDepth {
		c.broken(StackDepth, "%s has %d locations, at most %d", where, locations.Len(), maxStackDepth)
	}
	for _, l := range locations.All() {
		c.location(l, where)
	}
}

func (c *checker) location(i int32, where string) {
	ok, first := c.use("location", i, where)
	if !ok || !first {
		return
	}
	where = fmt.Sprintf("%s, location %d", where, i)
	l := c.dict.LocationTable().At(int(i))
	c.mapping(l.MappingIndex(), where)
	for _, line := range l.Lines().All() {
		if ok, first := c.use("function", line.FunctionIndex(), where); ok && first {
			f := c.dict.FunctionTable().At(int(line.FunctionIndex()))
			at := fmt.Sprintf("%s, function %d", where, line.FunctionIndex())
			c.string(f.NameStrindex(), at)
			c.string(f.SystemNameStrindex(), at)
			c.string(f.FilenameStrindex(), at)
			if f.StartLine() < 0 {
				c.broken(LineNumber, "%s starts at line %d", at, f.StartLine())
			}
		}
		if line.Line() < 0 || line.Column() < 0 {
			c.broken(LineNumber, "%s is at %d:%d", where, line.Line(), line.Column())
		}
	}
	if l.Address() == 0 && l.Lines().Len() == 0 {
		c.broken(LocationPlace, "%s has neither address nor line", where)
	}
	if l.MappingIndex() > 0 && int(l.MappingIndex()) < c.dict.MappingTable().Len() {
		m := c.dict.MappingTable().At(int(l.MappingIndex()))
		// A return address may be equal to the limit of its mapping.
		if m.MemoryLimit() > m.MemoryStart() && (l.Address() < m.MemoryStart() || l.Address() > m.MemoryLimit()) {
			c.broken(LocationPlace, "%s at %#x is outside of its mapping %#x-%#x", where, l.Address(), m.MemoryStart(), m.MemoryLimit())
		}
	}
	kind := ""
	for _, a := range c.attributes(l.AttributeIndices(), where) {
		if a.key == attr.FrameType {
			kind = a.value.AsString()
		}
	}
	if !slices.Contains(c.frames, kind) {
		c.broken(FrameType, "%s has profile.frame.type %q", where, kind)
	}
}

func (c *checker) mapping(i int32, where string) {
	ok, first := c.use("mapping", i, where)
	if !ok || !first || i == 0 {
		return
	}
	where = fmt.Sprintf("%s, mapping %d", where, i)
	m := c.dict.MappingTable().At(int(i))
	file := c.string(m.FilenameStrindex(), where)
	if (m.MemoryStart() != 0 || m.MemoryLimit() != 0) && m.MemoryLimit() <= m.MemoryStart() {
		c.broken(MappingRange, "%s is %#x-%#x", where, m.MemoryStart(), m.MemoryLimit())
	}
	built := false
	for _, a := range c.attributes(m.AttributeIndices(), where) {
		switch a.key {
		case attr.BuildIDGNU, attr.BuildIDGo, attr.BuildIDHTLHash:
			built = built || a.value.AsString() != ""
		}
	}
	if c.opts.BuildIDs && !built && len(file) > 0 && file[0] == '/' {
		c.broken(BuildID, "%s of %s has none", where, file)
	}
}

type attribute struct {
	key   string
	value pcommon.Value
}

// attributes resolves the indices of attributes. It checks that no key occurs twice.
func (c *checker) attributes(indices pcommon.Int32Slice, where string) []attribute {
	var out []attribute
	for _, i := range indices.All() {
		ok, first := c.use("attribute", i, where)
		if !ok {
			continue
		}
		a := c.dict.AttributeTable().At(int(i))
		at := fmt.Sprintf("%s, attribute %d", where, i)
		key := c.string(a.KeyStrindex(), at)
		c.string(a.UnitStrindex(), at)
		if first {
			c.validText(key, a.Value(), at)
			c.text(key, a.Value(), at)
			if a.Value().Type() == pcommon.ValueTypeEmpty {
				c.broken(AttributeType, "%s has %s without a value", where, key)
			}
		}
		for _, have := range out {
			if have.key == key {
				c.broken(AttributeKey, "%s has %q twice", where, key)
			}
		}
		if key == "" {
			c.broken(AttributeKey, "%s has an attribute without a key", where)
		}
		out = append(out, attribute{key, a.Value()})
	}
	return out
}

// text checks that an attribute of hotprofile is text.
func (c *checker) text(key string, v pcommon.Value, where string) {
	if strings.HasPrefix(key, attr.Prefix) && v.Type() != pcommon.ValueTypeStr && v.Type() != pcommon.ValueTypeEmpty {
		c.broken(TextAttribute, "%s has %s of type %s", where, key, v.Type())
	}
}

func (c *checker) validText(key string, v pcommon.Value, where string) {
	if !utf8.ValidString(key) || v.Type() == pcommon.ValueTypeStr && !utf8.ValidString(v.Str()) {
		c.broken(UTF8, "%s: %q %q", where, key, v.AsString())
	}
}
