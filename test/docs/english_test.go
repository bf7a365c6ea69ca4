// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// unclear matches phrases that make the reader search for the noun.
var unclear = regexp.MustCompile(`(?i)\b(that of|those of|that which|nobody|anybody|no one|what (is|it|was|they|has|were)|hands? over|lets? out|is what|is where|so many(eth)?th|as of then|thereof|whatsoever)\b`)

// inMarkdown matches phrases that are not allowed in pages either.
var inMarkdown = regexp.MustCompile(`(?i)\b(that of the|those of the|that which|hands over|so manieth|thereof|whatsoever)\b`)

// maxWords is the maximum number of words in a sentence of a comment.
const maxWords = 32

// sentenceEnd matches the end of a sentence or of a list item.
var sentenceEnd = regexp.MustCompile(`[.:;?!](\s|$)|\s+- `)

// comments calls f with each paragraph of each comment in the
// product's own Go code. It skips list items and code.
func comments(t *testing.T, f func(at, paragraph string)) {
	t.Helper()
	for _, folder := range []string{"internal", "receiver", "processor", "extension", "exporter", "converter"} {
		require.NoError(t, filepath.WalkDir(filepath.Join(root, folder), func(path string, e os.DirEntry, err error) error {
			name := e.Name()
			switch {
			case err != nil:
				return err
			case e.IsDir() && name == "testdata":
				return filepath.SkipDir
			case !strings.HasSuffix(name, ".go"), strings.HasSuffix(name, "_test.go"), strings.HasPrefix(name, "generated_"):
				return nil
			}
			set := token.NewFileSet()
			parsed, err := parser.ParseFile(set, path, nil, parser.ParseComments)
			if err != nil {
				return err
			}
			for _, group := range parsed.Comments {
				for paragraph := range strings.SplitSeq(group.Text(), "\n\n") {
					if line := strings.TrimLeft(paragraph, "\n"); line != "" && !strings.HasPrefix(line, "\t") && !strings.HasPrefix(line, "  ") {
						f(set.Position(group.Pos()).String(), strings.ReplaceAll(paragraph, "\n", " "))
					}
				}
			}
			return nil
		}))
	}
}

// TestCommentsRepeatTheNoun checks that comments contain no unclear
// phrases. The rules are in the part on English in CONTRIBUTING.md.
func TestCommentsRepeatTheNoun(t *testing.T) {
	checked := 0
	comments(t, func(at, paragraph string) {
		checked++
		if phrase := unclear.FindString(paragraph); phrase != "" {
			t.Errorf("%s: %q: write the noun, or another verb", at, phrase)
		}
	})
	require.Greater(t, checked, 5000)
}

func TestSentencesOfCommentsAreShort(t *testing.T) {
	comments(t, func(at, paragraph string) {
		for _, sentence := range sentenceEnd.Split(paragraph, -1) {
			if n := len(strings.Fields(sentence)); n > maxWords {
				t.Errorf("%s: a sentence of %d words, and at most %d are read in one go: %.60s…", at, n, maxWords, sentence)
			}
		}
	})
}

func TestPagesRepeatTheNoun(t *testing.T) {
	for page, text := range pages(t) {
		for i, line := range strings.Split(text, "\n") {
			if phrase := inMarkdown.FindString(code.ReplaceAllString(line, "")); phrase != "" {
				t.Errorf("%s:%d: %q: write the noun, or another verb", page, i+1, phrase)
			}
		}
	}
}
