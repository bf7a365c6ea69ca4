// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package order provides a heap of items whose keys may change, and a
// comparison of bools.
package order

import "container/heap"

// Heap is a min-heap of items. Each item stores its index in the heap. After several keys
// have changed, [heap.Init] restores the order.
type Heap[T any] struct {
	Items   []T
	Compare func(a, b T) int
	Index   func(T) *int // points to the item's index plus 1; 0 if the item is not in the heap
}

// Fix adds an item, or restores the heap's order after the item's key changed.
func (o *Heap[T]) Fix(item T) {
	if index := *o.Index(item); index > 0 {
		heap.Fix(o, index-1)
		return
	}
	heap.Push(o, item)
}

// Remove removes an item if the heap contains it.
func (o *Heap[T]) Remove(item T) {
	if index := *o.Index(item); index > 0 {
		heap.Remove(o, index-1)
	}
}

// Len implements [heap.Interface].
func (o *Heap[T]) Len() int { return len(o.Items) }

// Less implements [heap.Interface].
func (o *Heap[T]) Less(i, j int) bool { return o.Compare(o.Items[i], o.Items[j]) < 0 }

// Swap implements [heap.Interface].
func (o *Heap[T]) Swap(i, j int) {
	o.Items[i], o.Items[j] = o.Items[j], o.Items[i]
	*o.Index(o.Items[i]), *o.Index(o.Items[j]) = i+1, j+1
}

// Push adds an item at the end.
func (o *Heap[T]) Push(x any) {
	item := x.(T)
	o.Items = append(o.Items, item)
	*o.Index(item) = len(o.Items)
}

// Pop removes the item at the end.
func (o *Heap[T]) Pop() any {
	var none T
	last := len(o.Items) - 1
	item := o.Items[last]
	o.Items[last] = none
	o.Items = o.Items[:last]
	*o.Index(item) = 0
	return item
}

// Bools compares two bools. False comes first.
func Bools(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}
