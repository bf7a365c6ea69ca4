// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Command licenses writes the licences and notices of all software that is linked into a
// program, because its distribution must include them. It reads the output of
//
//	go list -deps -json=Dir,ImportPath,Standard,Module
//
// and fails if a module has no licence. Third-party files that packages of hotprofile embed
// are in static/third_party. The file THIRD_PARTY in this directory lists them.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
)

type goPackage struct {
	Dir, ImportPath string
	Standard        bool
	Module          *struct {
		Path, Version, Dir string
		Main               bool
	}
}

// licenseFile matches the file names of licences and notices.
var licenseFile = regexp.MustCompile(`(?i)^(un)?(licen[cs]e|copying|copyright|notice|patents)([-._].*)?$`)

// source matches source files whose names only look like a licence.
var source = regexp.MustCompile(`(?i)\.(go|s|c|h|py|sh|ya?ml|json)$`)

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(in io.Reader, out io.Writer) error {
	// The licences of a module are in the directories from its packages up to its root,
	// because parts of a module may have separate licences.
	texts, licensed, read := map[string]string{}, map[string]bool{}, map[string]bool{} // by file, module and directory
	for decoder := json.NewDecoder(in); ; {
		var p goPackage
		err := decoder.Decode(&p)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("read what go list wrote: %w", err)
		}
		name, root := "Go "+runtime.Version(), runtime.GOROOT()
		if m := p.Module; m != nil {
			if m.Main || strings.HasPrefix(m.Path+"/", "github.com/hotprofile/hotprofile/") {
				if err := addEmbedded(texts, p.Dir); err != nil {
					return err
				}
				continue
			}
			name, root = m.Path+" "+m.Version, m.Dir
		} else if !p.Standard {
			return fmt.Errorf("package %s is of no module", p.ImportPath)
		}
		if root == "" {
			return fmt.Errorf("the root of %s is not known: run this without -trimpath", name)
		}
		for dir := p.Dir; len(dir) >= len(root) && !read[dir]; dir = filepath.Dir(dir) {
			read[dir] = true
			found, err := addLicences(texts, name, root, dir)
			if err != nil {
				return err
			}
			licensed[name] = licensed[name] || found
		}
	}
	if len(licensed) == 0 {
		return errors.New("no packages on standard input")
	}
	w := bufio.NewWriter(out)
	fmt.Fprintf(w, "otelcol-hotprofile contains software of others, under the licences below.\n")
	for _, file := range slices.Sorted(maps.Keys(texts)) {
		fmt.Fprintf(w, "\n%s\n%s\n\n%s\n", strings.Repeat("=", 78), file, strings.TrimSpace(texts[file]))
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("write licences: %w", err)
	}
	maps.DeleteFunc(licensed, func(_ string, found bool) bool { return found })
	if without := slices.Sorted(maps.Keys(licensed)); len(without) > 0 {
		return fmt.Errorf("no licence found of: %s", strings.Join(without, ", "))
	}
	return nil
}

// addLicences adds the licences in a directory of a module.
func addLicences(licences map[string]string, module, root, dir string) (found bool, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return false, fmt.Errorf("look for the licence of %s: %w", module, err)
	}
	for _, e := range entries {
		if e.Type()&fs.ModeType != 0 || !licenseFile.MatchString(e.Name()) || source.MatchString(e.Name()) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return false, fmt.Errorf("read the licence of %s: %w", module, err)
		}
		relative, err := filepath.Rel(root, filepath.Join(dir, e.Name()))
		if err != nil {
			return false, fmt.Errorf("name the licence of %s: %w", module, err)
		}
		licences[module+": "+filepath.ToSlash(relative)], found = string(text), true
	}
	return found, nil
}

// addEmbedded adds the licences of third-party files that a package of hotprofile embeds.
// Each line of THIRD_PARTY contains the hash of a file, its path, its package and the name
// of its licence.
func addEmbedded(licences map[string]string, dir string) error {
	root := filepath.Join(dir, "static", "third_party")
	list, err := os.ReadFile(filepath.Join(root, "THIRD_PARTY"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the list of embedded files: %w", err)
	}
	from, with := map[string]bool{}, map[string]bool{}
	for line := range strings.Lines(string(list)) {
		fields := strings.Fields(line)
		if len(fields) != 4 || strings.HasPrefix(line, "#") {
			continue
		}
		name := fields[2]
		from[name] = true
		if !licenseFile.MatchString(filepath.Base(fields[1])) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(fields[1])))
		if err != nil {
			return fmt.Errorf("read the licence of %s: %w", name, err)
		}
		licences[name+": "+filepath.Base(fields[1])], with[name] = string(text), true
	}
	for _, name := range slices.Sorted(maps.Keys(from)) {
		if !with[name] {
			return fmt.Errorf("no licence found of: %s in %s", name, root)
		}
	}
	return nil
}
