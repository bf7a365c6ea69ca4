// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// root is the root directory of the repository.
const root = "../.."

// pages returns the repository's Markdown files, by their path from the root.
func pages(t *testing.T) map[string]string { return files(t, ".md") }

// files returns the repository's files whose names end
// with ext, by their path from the root.
func files(t *testing.T, ext string) map[string]string {
	t.Helper()
	texts := map[string]string{}
	require.NoError(t, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil // a temporary file of another process
		case err != nil:
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if entry.IsDir() {
			switch name {
			case ".git", "bin", "console", "dist", "profiles":
				return filepath.SkipDir
			}
			return nil
		}
		if filepath.Ext(name) != ext {
			return nil
		}
		text, err := os.ReadFile(path)
		texts[name] = string(text)
		return err
	}))
	return texts
}

var (
	code     = regexp.MustCompile("(?ms)^ *```.*?^ *```|`[^`\n]*`")
	fence    = regexp.MustCompile("(?ms)^ *```.*?^ *```")
	link     = regexp.MustCompile(`\]\(([^()\s]*)\)`)
	heading  = regexp.MustCompile(`(?m)^#+ +(.+?) *$`)
	linkText = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
)

// anchor returns the anchor that GitHub creates for a heading.
func anchor(heading string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-', r == '_', unicode.IsLetter(r), unicode.IsDigit(r):
			return unicode.ToLower(r)
		}
		return -1
	}, linkText.ReplaceAllString(heading, "$1"))
}

func TestEveryRelativeLinkLeadsSomewhere(t *testing.T) {
	texts := pages(t)
	require.Contains(t, texts, "README.md")
	checked := 0
	for name, text := range texts {
		for _, found := range link.FindAllStringSubmatch(code.ReplaceAllString(text, ""), -1) {
			target, section, _ := strings.Cut(found[1], "#")
			if strings.Contains(target, ":") { // another site
				continue
			}
			checked++
			leads := name
			if target != "" {
				leads = filepath.Join(filepath.Dir(name), target)
				if _, err := os.Stat(filepath.Join(root, leads)); !assert.NoError(t, err, "%s links to %s", name, found[1]) {
					continue
				}
			}
			if section == "" {
				continue
			}
			var anchors []string
			for _, h := range heading.FindAllStringSubmatch(fence.ReplaceAllString(texts[leads], ""), -1) {
				anchors = append(anchors, anchor(h[1]))
			}
			assert.Contains(t, anchors, section, "%s links to %s", name, found[1])
		}
	}
	assert.Greater(t, checked, 50, "links that were found")
}

func TestEveryPageIsInTheIndex(t *testing.T) {
	texts := pages(t)
	for name := range texts {
		if dir, file := filepath.Split(name); dir == "docs/" && file != "README.md" {
			assert.True(t, strings.Contains(texts["docs/README.md"], "]("+file+")"), "docs/README.md has no link to %s", name)
		}
	}
}

func TestArchitectureHasEveryFolderOfCode(t *testing.T) {
	page, seen := pages(t)["docs/architecture.md"], map[string]bool{}
	for file := range files(t, ".go") {
		dir := filepath.Dir(file)
		private := strings.Contains(dir, "perfevent/internal/") || strings.Contains(dir, "internal/metadata") || strings.Contains(dir, "internal/tools/")
		if seen[dir] || private || strings.Contains(dir, "testdata") || strings.HasPrefix(dir, "test/vm") || strings.HasPrefix(dir, "test/peers") {
			continue
		}
		seen[dir] = true
		named, err := regexp.MatchString("[`/]"+filepath.Base(dir)+"`", page)
		require.NoError(t, err)
		assert.True(t, named, "docs/architecture.md does not have %s", dir)
	}
	assert.Greater(t, len(seen), 50)
}
