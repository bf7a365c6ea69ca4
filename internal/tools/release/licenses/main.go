// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Command licenses writes the licences and notices of all software that is linked into a
// program, because its distribution must include them. It reads the output of
//
//	go list -deps -json=Dir,ImportPath,Standard,Module
//
// and fails if a module has no licence. Third-party files that packages of hotprofile embed
// are in static/third_party, with a list THIRD_PARTY.
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
	// dirs holds, by module, the directories from its packages up to its root, because
	// parts of a module may have separate licences.
	dirs, roots := map[string]map[string]bool{}, map[string]string{}
	embedded := map[string]string{} // maps package and file to the text
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
				if err := addEmbedded(embedded, p.Dir); err != nil {
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
		if dirs[name] == nil {
			dirs[name], roots[name] = map[string]bool{root: true}, root
		}
		for dir := p.Dir; len(dir) > len(root); dir = filepath.Dir(dir) {
			dirs[name][dir] = true
		}
	}
	if len(dirs) == 0 {
		return errors.New("no packages on standard input")
	}
	w := bufio.NewWriter(out)
	fmt.Fprintf(w, "otelcol-hotprofile contains software of others, under the licences below.\n")
	var without []string
	for _, name := range slices.Sorted(maps.Keys(dirs)) {
		found := false
		for _, dir := range slices.Sorted(maps.Keys(dirs[name])) {
			entries, err := os.ReadDir(dir)
			if err != nil {
				return fmt.Errorf("look for the licence of %s: %w", name, err)
			}
			for _, e := range entries {
				if e.Type()&fs.ModeType != 0 || !licenseFile.MatchString(e.Name()) || source.MatchString(e.Name()) {
					continue
				}
				text, err := os.ReadFile(filepath.Join(dir, e.Name()))
				if err != nil {
					return fmt.Errorf("read the licence of %s: %w", name, err)
				}
				relative, err := filepath.Rel(roots[name], filepath.Join(dir, e.Name()))
				if err != nil {
					return fmt.Errorf("name the licence of %s: %w", name, err)
				}
				fmt.Fprintf(w, "\n%s\n%s: %s\n\n%s\n", strings.Repeat("=", 78), name, filepath.ToSlash(relative), strings.TrimSpace(string(text)))
				found = true
			}
		}
		if !found {
			without = append(without, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(embedded)) {
		fmt.Fprintf(w, "\n%s\n%s\n\n%s\n", strings.Repeat("=", 78), name, strings.TrimSpace(embedded[name]))
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("write licences: %w", err)
	}
	if len(without) > 0 {
		return fmt.Errorf("no licence found of: %s", strings.Join(without, ", "))
	}
	return nil
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
