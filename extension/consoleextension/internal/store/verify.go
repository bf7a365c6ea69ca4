// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"math"
	"os"
)

// The layout of bbolt's files, internal/common of go.etcd.io/bbolt: pages that begin
// with a header; two pages with a meta; a tree of branch and leaf pages, with the
// buckets as trees in the values of leaves. Numbers are little-endian, as on all
// systems that the distribution is built for.
const (
	boltMagic     = 0xED0CDAED
	boltVersion   = 2
	headerSize    = 16
	elementSize   = 16
	bucketSize    = 16
	metaSize      = 64
	pageBranch    = 0x01
	pageLeaf      = 0x02
	pageFreelist  = 0x10
	elementBucket = 0x01
	noFreelist    = math.MaxUint64
	maxTreeDepth  = 64
)

// verify reports with errDamaged if bbolt cannot use a file without danger: every page
// that it can reach is read and looked at. It reads the file as a file and not as
// memory, and returns nil if there is none, or an empty one.
func verify(path string) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the console's database: %w", err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return fmt.Errorf("read the console's database: %w", err)
	}
	if st.Size() == 0 {
		return nil
	}
	v := verifier{file: f}
	if err := v.run(st.Size()); err != nil {
		return fmt.Errorf("%w: %s: %w", errDamaged, path, err)
	}
	return nil
}

type verifier struct {
	file     io.ReaderAt
	pageSize uint64
	pages    uint64 // below which all page ids are
	seen     []bool
	inBucket bool // the store has buckets at the root, and values in them
}

func (v *verifier) run(size int64) error {
	root, freelist, err := v.meta(size)
	if err != nil {
		return err
	}
	if v.pages > uint64(size)/v.pageSize {
		return fmt.Errorf("%d bytes of %d pages of %d", size, v.pages, v.pageSize)
	}
	v.seen = make([]bool, v.pages)
	if freelist != noFreelist {
		if err := v.freelist(freelist); err != nil {
			return err
		}
	}
	return v.tree(root, nil, nil, 0)
}

// meta reads the newer of the two metas that are whole. A crash leaves at least one.
func (v *verifier) meta(size int64) (root, freelist uint64, err error) {
	var found bool
	var newest uint64
	read := func(at int64) {
		b := make([]byte, metaSize)
		if at+headerSize+metaSize > size {
			return
		}
		if _, err := v.file.ReadAt(b, at+headerSize); err != nil {
			return
		}
		h := fnv.New64a()
		_, _ = h.Write(b[:56])
		le := binary.LittleEndian
		pageSize := uint64(le.Uint32(b[8:]))
		if le.Uint32(b) != boltMagic || le.Uint32(b[4:]) != boltVersion || le.Uint64(b[56:]) != h.Sum64() ||
			pageSize < 512 || pageSize > 1<<20 || pageSize&(pageSize-1) != 0 {
			return
		}
		if at != 0 && uint64(at) != pageSize {
			return
		}
		if txid := le.Uint64(b[48:]); !found || txid > newest {
			found, newest = true, txid
			root, freelist = le.Uint64(b[16:]), le.Uint64(b[32:])
			v.pageSize, v.pages = pageSize, le.Uint64(b[40:])
		}
	}
	read(0)
	for at := int64(512); at <= 1<<20; at *= 2 {
		read(at)
	}
	if !found {
		return 0, 0, errors.New("no valid meta page")
	}
	return root, freelist, nil
}

// page reads a page with those that follow it, and marks them as seen.
func (v *verifier) page(id uint64) (flags, count int, page []byte, err error) {
	if id < 2 || id >= v.pages {
		return 0, 0, nil, fmt.Errorf("page %d of %d", id, v.pages)
	}
	page = make([]byte, v.pageSize)
	if _, err := v.file.ReadAt(page, int64(id*v.pageSize)); err != nil {
		return 0, 0, nil, fmt.Errorf("read page %d: %w", id, err)
	}
	le := binary.LittleEndian
	more := uint64(le.Uint32(page[12:]))
	if le.Uint64(page) != id || more >= v.pages-id {
		return 0, 0, nil, fmt.Errorf("page %d has the header of page %d with %d more", id, le.Uint64(page), more)
	}
	for i := range more + 1 {
		if v.seen[id+i] {
			return 0, 0, nil, fmt.Errorf("page %d is used twice", id+i)
		}
		v.seen[id+i] = true
	}
	if more > 0 {
		rest := make([]byte, (more+1)*v.pageSize)
		if _, err := v.file.ReadAt(rest, int64(id*v.pageSize)); err != nil {
			return 0, 0, nil, fmt.Errorf("read page %d: %w", id, err)
		}
		page = rest
	}
	return int(le.Uint16(page[8:])), int(le.Uint16(page[10:])), page, nil
}

// freelist checks the list of free pages, which only a database without a transaction has.
func (v *verifier) freelist(id uint64) error {
	flags, count, _, err := v.page(id)
	if err != nil {
		return err
	}
	if flags != pageFreelist || count != 0 {
		return fmt.Errorf("page %d is no empty list of free pages: flags %#x, %d pages", id, flags, count)
	}
	return nil
}

// tree checks the pages from one on. If from is not nil, it is their first key: bbolt
// finds pages in their branch by it, and would leave a page there that it has freed. All
// keys are below to if that is not nil.
func (v *verifier) tree(id uint64, from, to []byte, depth int) error {
	if depth > maxTreeDepth {
		return fmt.Errorf("page %d is at depth %d", id, depth)
	}
	flags, count, page, err := v.page(id)
	if err != nil {
		return err
	}
	switch flags {
	case pageLeaf:
		return v.leaf(id, count, page, from, to, depth)
	case pageBranch:
		return v.branch(id, count, page, from, to, depth)
	}
	return fmt.Errorf("page %d has flags %#x", id, flags)
}

// inPlace reports whether an element of a page may have a key.
func inPlace(i int, key, from, to []byte) bool {
	return (i > 0 || from == nil || bytes.Equal(key, from)) && (to == nil || bytes.Compare(key, to) < 0)
}

func (v *verifier) branch(id uint64, count int, page, from, to []byte, depth int) error {
	if count == 0 || headerSize+count*elementSize > len(page) {
		return fmt.Errorf("branch page %d has %d elements", id, count)
	}
	le := binary.LittleEndian
	element := func(i int) (key []byte, child uint64, ok bool) {
		at := headerSize + i*elementSize
		e := page[at:]
		pos, n := uint64(le.Uint32(e)), uint64(le.Uint32(e[4:]))
		start := uint64(at) + pos
		if pos < elementSize || start+n > uint64(len(page)) {
			return nil, 0, false
		}
		return page[start : start+n : start+n], le.Uint64(e[8:]), true
	}
	for i := range count {
		key, child, ok := element(i)
		if !ok {
			return fmt.Errorf("element %d of branch page %d lies outside of it", i, id)
		}
		if !inPlace(i, key, from, to) {
			return fmt.Errorf("element %d of branch page %d is out of order", i, id)
		}
		end := to
		if i+1 < count {
			if end, _, ok = element(i + 1); !ok || bytes.Compare(end, key) <= 0 {
				return fmt.Errorf("element %d of branch page %d is out of order", i+1, id)
			}
		}
		if err := v.tree(child, key, end, depth+1); err != nil {
			return err
		}
	}
	return nil
}

func (v *verifier) leaf(id uint64, count int, page, from, to []byte, depth int) error {
	if headerSize+count*elementSize > len(page) || (count == 0 && from != nil) {
		return fmt.Errorf("leaf page %d has %d elements", id, count)
	}
	le := binary.LittleEndian
	var last []byte
	for i := range count {
		at := headerSize + i*elementSize
		e := page[at:]
		flags := le.Uint32(e)
		pos, k, n := uint64(le.Uint32(e[4:])), uint64(le.Uint32(e[8:])), uint64(le.Uint32(e[12:]))
		start := uint64(at) + pos
		if pos < elementSize || start+k+n > uint64(len(page)) || k == 0 {
			return fmt.Errorf("element %d of leaf page %d lies outside of it", i, id)
		}
		key, value := page[start:start+k], page[start+k:start+k+n]
		if !inPlace(i, key, from, to) || (i > 0 && bytes.Compare(key, last) <= 0) {
			return fmt.Errorf("element %d of leaf page %d is out of order", i, id)
		}
		last = key
		switch {
		case flags == 0 && v.inBucket:
		case flags == elementBucket && !v.inBucket:
			if err := v.bucket(id, value, depth); err != nil {
				return err
			}
		default:
			return fmt.Errorf("element %d of leaf page %d has flags %#x", i, id, flags)
		}
	}
	return nil
}

// bucket checks the tree of a bucket, or its only page if that is in the value.
func (v *verifier) bucket(id uint64, value []byte, depth int) error {
	if len(value) < bucketSize {
		return fmt.Errorf("leaf page %d has a bucket of %d bytes", id, len(value))
	}
	v.inBucket = true
	defer func() { v.inBucket = false }()
	le := binary.LittleEndian
	if root := le.Uint64(value); root != 0 {
		return v.tree(root, nil, nil, depth+1)
	}
	page := value[bucketSize:]
	if len(page) < headerSize || le.Uint16(page[8:]) != pageLeaf {
		return fmt.Errorf("leaf page %d has a bucket without a page", id)
	}
	return v.leaf(id, int(le.Uint16(page[10:])), page, nil, nil, depth+1)
}
