// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package trigger

import "container/heap"

// order is a heap of items that know their index in it, the least in front.
type order[T any] struct {
	items   []T
	compare func(a, b T) int
	index   func(T) *int // where an item keeps its index, plus 1; 0: it is not in here
}

// fix adds an item, or moves it to where it belongs now.
func (o *order[T]) fix(item T) {
	if index := *o.index(item); index > 0 {
		heap.Fix(o, index-1)
		return
	}
	heap.Push(o, item)
}

// remove removes an item that may be in here.
func (o *order[T]) remove(item T) {
	if index := *o.index(item); index > 0 {
		heap.Remove(o, index-1)
	}
}

// Len is of heap.Interface, as are the following.
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
