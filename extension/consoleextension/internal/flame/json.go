// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package flame

import (
	"encoding/json"
	"io"
)

// These constants limit the size of a tree's JSON. In addition to the names, the JSON
// contains at most 1.3 MB of numbers for MaxNodes frames.
const (
	// MaxText is the maximum length of the name of a function or file, in bytes.
	MaxText = 256
	// maxTexts limits the total length of all names, in bytes. If the names may exceed
	// this limit, WriteJSON truncates each name further. In the JSON, a name may be up to
	// six times as long, because some characters are escaped.
	maxTexts = 1 << 20
)

// WriteJSON writes the tree for the script flame.js. It writes parallel arrays, because
// one object per frame would be four times as large. The values of the other profile are
// only written if compared is true. The JSON is also safe inside a script element,
// because encoding/json escapes <, > and &.
func (t Tree) WriteJSON(to io.Writer, compared bool) error {
	cut := MaxText
	if n := 2 * len(t.Functions); n*cut > maxTexts {
		cut = max(maxTexts/n, 16)
	}
	out := map[string]any{
		"unit": t.Unit, "min_share": t.MinShare, "pruned": t.Pruned, "pruned_self": t.PrunedSelf.Here, "samples": t.Samples.Here,
		"names":    Column(t.Functions, func(f Function) string { return Short(f.Name, cut) }),
		"files":    Column(t.Functions, func(f Function) string { return ShortPath(f.File, cut) }),
		"function": Column(t.Nodes, func(n Node) int32 { return n.Function }),
		"depth":    Column(t.Nodes, func(n Node) int32 { return n.Depth }),
		"line":     Column(t.Nodes, func(n Node) int32 { return n.Line }),
		"total":    Column(t.Nodes, func(n Node) int64 { return n.Total.Here }),
		"self":     Column(t.Nodes, func(n Node) int64 { return n.Self.Here }),
	}
	if compared {
		out["samples_there"] = t.Samples.There
		out["total_there"] = Column(t.Nodes, func(n Node) int64 { return n.Total.There })
		out["self_there"] = Column(t.Nodes, func(n Node) int64 { return n.Self.There })
	}
	return json.NewEncoder(to).Encode(out)
}

// Column calls of for each item and returns the results.
func Column[S, T any](from []S, of func(S) T) []T {
	out := make([]T, len(from))
	for i, one := range from {
		out[i] = of(one)
	}
	return out
}
