// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package policyfile reads and replaces the file from which cpu_trigger reads its
// policies. The package does not know the format of the file. The component that
// reads the file checks the content.
package policyfile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/hotprofile/hotprofile/extension/hotunitsextension"
	"github.com/hotprofile/hotprofile/internal/atomicfile"
	"github.com/hotprofile/hotprofile/internal/boundedread"
)

// previousSuffix is the suffix of the file that keeps the version before the last save.
const previousSuffix = ".previous"

// ErrNoReader is returned if no component can check a document.
var ErrNoReader = errors.New("no cpu_trigger of this collector reads the file by policies_from.file, so that nothing can check a new version")

// ErrNotEditable is returned if edit is not set.
var ErrNotEditable = errors.New("the file is not edited here: edit is not set")

// ErrChanged is returned if the file changed after the edited version was read.
var ErrChanged = errors.New("the file has changed since it was shown")

// InvalidError lists the faults of a document.
type InvalidError struct{ Err error }

func (e *InvalidError) Error() string { return e.Err.Error() }

// Unwrap returns the faults.
func (e *InvalidError) Unwrap() error { return e.Err }

// File is the policy file. It is safe for concurrent use.
type File struct {
	Path string
	// Readers returns the components that read the file.
	Readers func() []hotunitsextension.PolicyFile

	edit bool
	disk boundedread.Disk
}

// New returns the policy file at a path. Save works only if edit is true.
func New(path string, edit bool, readers func() []hotunitsextension.PolicyFile) *File {
	return &File{Path: path, Readers: readers, edit: edit, disk: make(boundedread.Disk, 1)}
}

// Document is a version of the file.
type Document struct {
	Text []byte
	// Version is the version of Text. cpu_trigger logs the same version.
	Version string
}

// Read returns the current version of the file. Read returns when the context ends,
// even if the disk does not respond.
func (f *File) Read(ctx context.Context) (Document, error) {
	var doc Document
	err := f.do(ctx, func() error {
		text, _, err := boundedread.File(f.Path, hotunitsextension.MaxPolicyFile)
		doc = Document{text, hotunitsextension.PolicyVersion(text)}
		return err
	})
	if err != nil {
		return Document{}, err
	}
	return doc, nil
}

// Editable returns nil if Save is possible. Save requires that edit is set, that a
// component can check documents, and that the directory is writable.
func (f *File) Editable() error {
	switch {
	case !f.edit:
		return ErrNotEditable
	case len(f.Readers()) == 0:
		return ErrNoReader
	}
	path, err := filepath.EvalSymlinks(f.Path)
	if err != nil {
		return err
	}
	return writable(filepath.Dir(path))
}

// Check returns an InvalidError if a reader of the file would reject a document.
func (f *File) Check(document []byte) error {
	readers := f.Readers()
	if len(readers) == 0 {
		return ErrNoReader
	}
	for _, r := range readers {
		if err := r.Check(document); err != nil {
			return &InvalidError{err}
		}
	}
	return nil
}

// Doubts returns the warnings of all readers about probable mistakes in a document.
func (f *File) Doubts(document []byte) (all []string) {
	for _, r := range f.Readers() {
		if r.Doubts != nil {
			all = append(all, r.Doubts(document)...)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// Save replaces the file if its current version equals from. Otherwise Save returns
// ErrChanged. Save keeps the old version in a file with the suffix .previous, and keeps
// the owner, the mode, the access control lists and the labels. A reader of the file sees
// either the old or the new version, even after a crash. If another writer replaces the
// file during Save, Save keeps the version of the other writer and returns ErrChanged.
func (f *File) Save(ctx context.Context, from string, document []byte) error {
	if err := f.Editable(); err != nil {
		return err
	}
	if err := f.Check(document); err != nil {
		return err
	}
	return f.do(ctx, func() error {
		path, err := filepath.EvalSymlinks(f.Path) // a rename would replace the link
		if err != nil {
			return err
		}
		old, info, err := boundedread.File(path, hotunitsextension.MaxPolicyFile)
		if err != nil {
			return err
		}
		if hotunitsextension.PolicyVersion(old) != from {
			return ErrChanged
		}
		if bytes.Equal(old, document) {
			return nil
		}
		temp, err := atomicfile.Temporary(filepath.Dir(path), document, sameAs(path, info))
		if err != nil {
			return err
		}
		err = swap(temp, path, from, hotunitsextension.PolicyVersion(document))
		if errors.Is(err, errors.ErrUnsupported) {
			err = replace(temp, path, old, info)
		}
		if removeErr := os.Remove(temp); removeErr != nil && !errors.Is(removeErr, fs.ErrNotExist) {
			err = errors.Join(err, removeErr)
		}
		atomicfile.SyncDirectory(filepath.Dir(path))
		return err
	})
}

// swap exchanges a new file with the file at path, and keeps the old file as the
// previous version. from is the version that the old file must have. If the old file has
// another version, swap restores it and returns ErrChanged. new is the version of the
// new file.
func swap(file, path, from, new string) error {
	if err := exchange(file, path); err != nil {
		return err
	}
	is := func(version string) bool {
		text, _, err := boundedread.File(file, hotunitsextension.MaxPolicyFile)
		return err == nil && hotunitsextension.PolicyVersion(text) == version
	}
	if is(from) {
		return os.Rename(file, path+previousSuffix)
	}
	// Another writer has replaced the file, so exchange the files again to
	// restore the other writer's version. If yet another version has arrived
	// since then, the newest version stays.
	err := exchange(file, path)
	if err == nil && !is(new) {
		err = errors.Join(exchange(file, path), os.Rename(file, path+previousSuffix))
	}
	return errors.Join(ErrChanged, err)
}

// replace does the work of swap if files cannot be exchanged. It loses a version that
// another writer renames to the path at the last moment.
func replace(file, path string, old []byte, like fs.FileInfo) error {
	if err := atomicfile.Write(path+previousSuffix, old, sameAs(path, like)); err != nil {
		return fmt.Errorf("keep the old version: %w", err)
	}
	if now, _, err := boundedread.File(path, hotunitsextension.MaxPolicyFile); err == nil && !bytes.Equal(now, old) {
		return ErrChanged
	}
	return os.Rename(file, path)
}

// do calls use, which reads or writes the disk. do returns when the context ends,
// even if the disk does not respond.
func (f *File) do(ctx context.Context, use func() error) error {
	err := f.disk.Do(ctx, use)
	if err != nil && errors.Is(err, ctx.Err()) {
		err = fmt.Errorf("%s: the disk does not answer: %w", f.Path, err)
	}
	return err
}

// sameAs returns a function that prepares a new file. The function copies the owner, the
// mode, the access control lists and the labels from the file at path to the new file.
// Then it syncs the new file to disk.
func sameAs(path string, info fs.FileInfo) func(*os.File) error {
	return func(f *os.File) error {
		return errors.Join(own(f, info), f.Chmod(info.Mode().Perm()), copyAttributes(path, f), f.Sync())
	}
}
