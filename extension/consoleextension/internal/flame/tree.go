// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package flame

import (
	"cmp"
	"encoding/json"
	"io"
	"iter"
	"math"
	"slices"
)

// These constants limit the data that is sent to a browser.
const (
	// MinShare is the minimum share of a frame in the tree. If more than
	// MaxNodes frames have this share, the minimum share is doubled until at
	// most MaxNodes frames are left.
	MinShare = 0.001
	// MaxNodes is the maximum number of frames of a tree. MaxDepth is the
	// maximum depth of a tree.
	MaxNodes = 10_000
	MaxDepth = 512
)

// Query selects the samples of a tree or a table. If Base is not nil, the profile in Of is
// compared with the profile in Base.
type Query struct {
	Of         *Stacks
	Filter     Filter
	Base       *Stacks
	BaseFilter Filter
}

// Value contains a value for each of the two profiles. Here belongs to the profile of the
// query, and There belongs to the base profile that it is compared with.
type Value struct {
	Here, There int64
}

// Share divides each of the two values by the corresponding total in all. The results are
// between 0 and 1.
func (v Value) Share(all Value) (here, there float64) {
	return share(v.Here, all.Here), share(v.There, all.There)
}

func share(v, all int64) float64 {
	if all <= 0 {
		return 0
	}
	return float64(v) / float64(all)
}

// Node is a frame of a tree.
type Node struct {
	Function    int32 // index in Functions; -1 for the root, which stands for all samples
	Depth       int32 // 0 for the root
	Line        int32 // line with the largest value; 0 if not known
	Total, Self Value
}

// Function is a function of a profile.
type Function struct {
	Name, File string
}

// Tree contains the frames of a flame graph.
type Tree struct {
	Unit      string
	Total     Value
	Samples   Value // 0 if not known
	Functions []Function
	// Nodes contains the frames in preorder. The first node is the root. Each frame is
	// followed by the frames that it called, sorted by name.
	Nodes []Node
	// MinShare is the share of the total that a frame needs to be in Nodes. Pruned is the
	// number of omitted smaller frames. PrunedSelf is the sum of the values of the omitted
	// frames.
	MinShare   float64
	Pruned     int
	PrunedSelf Value
}

// Tree computes the flame graph.
func (q Query) Tree() Tree {
	b := treeBuilder{here: sideOf(q.Of, q.Filter), there: sideOf(q.base(), q.BaseFilter)}
	t := Tree{Unit: q.Of.Unit, Samples: q.Samples(), Total: Value{b.here.totals[0], b.there.totals[0]}, MinShare: MinShare}
	for {
		b.least = Value{least(t.Total.Here, t.MinShare), least(t.Total.There, t.MinShare)}
		b.nodes, b.functions, b.known, b.kept = nil, nil, make(map[string]int32), 0
		if b.walk(0, 0, 0) {
			break
		}
		t.MinShare *= 2
	}
	t.Nodes, t.Functions = b.nodes, b.functions
	t.Pruned = b.here.count() + b.there.count() - b.kept
	t.PrunedSelf = t.Total
	for _, n := range t.Nodes {
		t.PrunedSelf.Here -= n.Self.Here
		t.PrunedSelf.There -= n.Self.There
	}
	return t
}

// least returns the minimum value for which a frame is drawn. share is the minimum share
// of total.
func least(total int64, share float64) int64 {
	return max(1, int64(math.Ceil(float64(total)*share)))
}

// side is a profile with the values of its nodes.
type side struct {
	s      *Stacks
	filter Filter
	totals []int64
}

// nothing is an empty profile.
var nothing = &Stacks{parent: []int32{-1}, first: []int32{1, 1}, function: []int32{-1}, line: []int32{0}, inner: []bool{false}}

// base returns the base profile, or an empty profile if the query does not compare two
// profiles.
func (q Query) base() *Stacks { return cmp.Or(q.Base, nothing) }

func sideOf(s *Stacks, filter Filter) side { return side{s, filter, s.totals(filter)} }

// children returns the range of the children of a node. If n is negative, this side does
// not contain the node, and the range is empty.
func (s side) children(n int32) (from, to int32) {
	if n < 0 {
		return 0, 0
	}
	return s.s.first[n], s.s.first[n+1]
}

func (s side) values(n int32) (total, self int64) {
	if n < 0 {
		return 0, 0
	}
	return s.totals[n], s.s.self(s.totals, n)
}

func (s side) name(n int32) string {
	return s.s.names[s.s.function[n]]
}

// count returns the number of frames with a value above 0.
func (s side) count() int {
	n := 0
	for _, v := range s.totals {
		if v > 0 {
			n++
		}
	}
	return n
}

// treeBuilder walks through the trees of both sides at once.
type treeBuilder struct {
	here, there side
	least       Value
	nodes       []Node
	functions   []Function
	known       map[string]int32 // indices of functions
	kept        int              // frames of both sides
}

// walk adds a frame and the frames below it. One of the two sides may lack the frame.
// walk returns false if there are too many frames.
func (b *treeBuilder) walk(x, y, depth int32) bool {
	if len(b.nodes) == MaxNodes {
		return false
	}
	n := Node{Function: -1, Depth: depth}
	n.Total.Here, n.Self.Here = b.here.values(x)
	n.Total.There, n.Self.There = b.there.values(y)
	if n.Total.Here > 0 {
		b.kept++
	}
	if n.Total.There > 0 {
		b.kept++
	}
	if depth > 0 {
		n.Function, n.Line = b.function(x, y)
	}
	b.nodes = append(b.nodes, n)
	if depth == MaxDepth {
		return true
	}
	i, iEnd := b.here.children(x)
	j, jEnd := b.there.children(y)
	for here, there := range pairs(i, iEnd, j, jEnd, func(i, j int32) int { return cmp.Compare(b.here.name(i), b.there.name(j)) }) {
		if (here < 0 || b.here.totals[here] < b.least.Here) && (there < 0 || b.there.totals[there] < b.least.There) {
			continue
		}
		if !b.walk(here, there, depth+1) {
			return false
		}
	}
	return true
}

// pairs merges the sorted numbers from i to iEnd with the sorted numbers from j to jEnd.
// It yields equal numbers as a pair. A number that occurs on only one side is paired with
// -1.
func pairs(i, iEnd, j, jEnd int32, compare func(i, j int32) int) iter.Seq2[int32, int32] {
	return func(yield func(i, j int32) bool) {
		for i < iEnd || j < jEnd {
			order, here, there := 0, int32(-1), int32(-1)
			if i < iEnd && j < jEnd {
				order = compare(i, j)
			}
			if i < iEnd && order <= 0 {
				here, i = i, i+1
			}
			if j < jEnd && order >= 0 {
				there, j = j, j+1
			}
			if !yield(here, there) {
				return
			}
		}
	}
}

// function returns the index of a frame's function, and the line of the frame.
func (b *treeBuilder) function(x, y int32) (index, line int32) {
	s, n := b.here.s, x
	if x < 0 {
		s, n = b.there.s, y
	}
	f := s.function[n]
	index, ok := b.known[s.names[f]]
	if !ok {
		index = int32(len(b.functions))
		b.known[s.names[f]] = index
		b.functions = append(b.functions, Function{s.names[f], s.files[f]})
	}
	return index, s.line[n]
}

// carries is a share of a frame's growth. Grown omits a frame if a single frame that it
// calls accounts for at least this share.
const carries = 0.8

// Grown returns at most limit frames whose shares grew the most compared with the other
// profile. It omits growth that may be due to chance. In a chain of calls, Grown returns
// the innermost frame that still accounts for most of the growth, because that frame made
// its callers grow. No returned frame calls another returned frame.
func (t Tree) Grown(limit int) []Node {
	growth := make([]float64, len(t.Nodes))
	end := make([]int, len(t.Nodes))          // first later node that is not below the node
	heaviest := make([]float64, len(t.Nodes)) // growth of the child that grew most
	var path []int
	leave := func(depth, at int) {
		for len(path) > depth {
			end[path[len(path)-1]] = at
			path = path[:len(path)-1]
		}
	}
	for i, n := range t.Nodes {
		leave(int(n.Depth), i)
		here, there := n.Total.Share(t.Total)
		growth[i] = here - there
		if len(path) > 0 {
			parent := path[len(path)-1]
			heaviest[parent] = max(heaviest[parent], growth[i])
		}
		path = append(path, i)
	}
	leave(0, len(t.Nodes))

	var candidates []int
	for i := 1; i < len(t.Nodes); i++ {
		here, there := t.Nodes[i].Total.Share(t.Total)
		if growth[i] > 0 && heaviest[i] < carries*growth[i] && !Chance(here, there, t.Samples) {
			candidates = append(candidates, i)
		}
	}
	slices.SortStableFunc(candidates, func(a, b int) int { return cmp.Compare(growth[b], growth[a]) })
	var grown []Node
	var taken []int
	for _, i := range candidates {
		if len(grown) == limit {
			break
		}
		n := t.Nodes[i]
		if slices.ContainsFunc(taken, func(j int) bool {
			return i >= j && i < end[j] || j >= i && j < end[i] || n.Function == t.Nodes[j].Function
		}) {
			continue
		}
		taken = append(taken, i)
		grown = append(grown, n)
	}
	return grown
}

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
