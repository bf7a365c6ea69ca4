// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package trigger

import "container/heap"

// order is a min-heap of items. Each item stores its index in the heap.
type order[T any] struct {
	items   []T
	compare func(a, b T) int
	index   func(T) *int // points to the item's index plus 1, or 0 if not in the heap
}

// fix adds an item, or restores the heap's order after the item's key changed.
func (o *order[T]) fix(item T) {
	if index := *o.index(item); index > 0 {
		heap.Fix(o, index-1)
		return
	}
	heap.Push(o, item)
}

// remove removes an item if the heap contains it.
func (o *order[T]) remove(item T) {
	if index := *o.index(item); index > 0 {
		heap.Remove(o, index-1)
	}
}

// Len, Less, Swap, Push and Pop implement heap.Interface.
func (o *order[T]) Len() int { return len(o.items) }

func (o *order[T]) Less(i, j int) bool { return o.compare(o.items[i], o.items[j]) < 0 }

func (o *order[T]) Swap(i, j int) {
	o.items[i], o.items[j] = o.items[j], o.items[i]
	*o.index(o.items[i]), *o.index(o.items[j]) = i+1, j+1
}

// Push adds an item at the end.
func (o *order[T]) Push(x any) {
	item := x.(T)
	o.items = append(o.items, item)
	*o.index(item) = len(o.items)
}

// Pop removes the item at the end.
func (o *order[T]) Pop() any {
	var none T
	last := len(o.items) - 1
	item := o.items[last]
	o.items[last] = none
	o.items = o.items[:last]
	*o.index(item) = 0
	return item
}
