// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package web

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"time"
)

//go:embed static
var staticFS embed.FS

// staticFiles serves the files in static. The URL of a file contains the beginning of its
// hash, so that browsers can cache the file and still load a new version.
type staticFiles struct {
	content map[string][]byte // by path below static
	version map[string]string
}

func newStaticFiles() (*staticFiles, error) {
	s := &staticFiles{content: map[string][]byte{}, version: map[string]string{}}
	err := fs.WalkDir(staticFS, "static", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		b, err := staticFS.ReadFile(name)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(b)
		name = strings.TrimPrefix(name, "static/")
		s.content[name], s.version[name] = b, hex.EncodeToString(sum[:8])
		return nil
	})
	return s, err
}

// url returns the URL of a file. Templates call it as {{static "NAME"}}.
func (s *staticFiles) url(name string) (string, error) {
	version, ok := s.version[name]
	if !ok {
		return "", fmt.Errorf("static: no file %q", name)
	}
	return "/static/" + name + "?v=" + version, nil
}

func (s *staticFiles) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name := strings.TrimPrefix(r.URL.Path, "/static/")
	b, ok := s.content[name]
	if !ok {
		http.NotFound(w, r)
		return
	}
	h := w.Header()
	h.Set("ETag", `"`+s.version[name]+`"`)
	if r.URL.Query().Get("v") == s.version[name] {
		h.Set("Cache-Control", "public, max-age=31536000, immutable")
	} else {
		h.Set("Cache-Control", "no-cache")
	}
	h.Set("Content-Type", contentType(name))
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(b))
}

// contentType returns the content type of a file. The MIME table of the host is not used,
// because it differs between hosts.
func contentType(name string) string {
	types := map[string]string{
		".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml", "": "text/plain; charset=utf-8",
	}
	return cmp.Or(types[path.Ext(name)], "application/octet-stream")
}
