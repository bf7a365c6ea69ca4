// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package flame

import (
	"cmp"
	"slices"
)

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
