// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package flame

import (
	"bufio"
	"encoding/json"
	"io"
	"strconv"
)

// The bounds of the JSON of a tree. The numbers of MaxNodes frames take at most 1.3 MB.
const (
	// MaxText bounds the text of a name or file, in bytes.
	MaxText = 256
	// maxTexts bounds all texts together, in bytes. If there are more texts, each text is
	// cut further. A character that must be escaped takes up to six bytes.
	maxTexts = 1 << 20
)

// WriteJSON writes the tree for the script flame.js. It writes parallel arrays, because one
// object per frame would be four times as large. It writes the values of the other profile
// only if compared is true.
func (t Tree) WriteJSON(to io.Writer, compared bool) error {
	w := writer{bufio.NewWriterSize(to, 32<<10)}
	w.text(`{"unit":`)
	w.quote(t.Unit)
	w.text(`,"min_share":` + strconv.FormatFloat(t.MinShare, 'g', 6, 64))
	w.text(`,"pruned":` + strconv.Itoa(t.Pruned))
	w.text(`,"pruned_self":`)
	w.number(t.PrunedSelf.Here)
	w.text(`,"samples":`)
	w.number(t.Samples.Here)
	if compared {
		w.text(`,"samples_there":`)
		w.number(t.Samples.There)
	}
	cut := MaxText
	if n := 2 * len(t.Functions); n*cut > maxTexts {
		cut = max(maxTexts/n, 16)
	}
	w.array("names", len(t.Functions), func(i int) { w.quote(Short(t.Functions[i].Name, cut)) })
	w.array("files", len(t.Functions), func(i int) { w.quote(ShortPath(t.Functions[i].File, cut)) })
	ints := func(name string, of func(Node) int64) {
		w.array(name, len(t.Nodes), func(i int) { w.number(of(t.Nodes[i])) })
	}
	ints("function", func(n Node) int64 { return int64(n.Function) })
	ints("depth", func(n Node) int64 { return int64(n.Depth) })
	ints("line", func(n Node) int64 { return int64(n.Line) })
	ints("total", func(n Node) int64 { return n.Total.Here })
	ints("self", func(n Node) int64 { return n.Self.Here })
	if compared {
		ints("total_there", func(n Node) int64 { return n.Total.There })
		ints("self_there", func(n Node) int64 { return n.Self.There })
	}
	w.text("}")
	return w.Flush()
}

// writer keeps its first error until Flush returns the error.
type writer struct{ *bufio.Writer }

func (w writer) text(s string) { _, _ = w.WriteString(s) }

func (w writer) number(v int64) {
	_, _ = w.Write(strconv.AppendInt(w.AvailableBuffer(), v, 10))
}

// quote writes a text that is also safe inside a script element, because json.Marshal
// escapes <, > and &.
func (w writer) quote(s string) {
	quoted, err := json.Marshal(s)
	if err != nil { // no string fails
		quoted = []byte(`""`)
	}
	_, _ = w.Write(quoted)
}

func (w writer) array(name string, n int, element func(int)) {
	w.text(`,"` + name + `":[`)
	for i := range n {
		if i > 0 {
			_ = w.WriteByte(',')
		}
		element(i)
	}
	w.text("]")
}
