// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package web

import (
	"cmp"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net/http"
	"path"
	"strings"
)

//go:embed static
var staticFS embed.FS

// staticFiles serves the files in static. The URL of a file contains the beginning of its
// hash, so that browsers can cache the file and still load a new version.
type staticFiles map[string]string // versions by path below static

func newStaticFiles() staticFiles {
	s := staticFiles{}
	_ = fs.WalkDir(staticFS, "static", func(name string, _ fs.DirEntry, _ error) error {
		if b, err := staticFS.ReadFile(name); err == nil { // name is not a directory
			sum := sha256.Sum256(b)
			s[strings.TrimPrefix(name, "static/")] = hex.EncodeToString(sum[:8])
		}
		return nil
	})
	return s
}

// url returns the URL of a file. Templates call it as {{static "NAME"}}.
func (s staticFiles) url(name string) (string, error) {
	version, ok := s[name]
	if !ok {
		return "", fmt.Errorf("static: no file %q", name)
	}
	return "/static/" + name + "?v=" + version, nil
}

func (s staticFiles) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name := strings.TrimPrefix(r.URL.Path, "/static/")
	version, ok := s[name]
	if !ok {
		http.NotFound(w, r)
		return
	}
	h := w.Header()
	h.Set("ETag", `"`+version+`"`)
	if r.URL.Query().Get("v") == version {
		h.Set("Cache-Control", "public, max-age=31536000, immutable")
	} else {
		h.Set("Cache-Control", "no-cache")
	}
	h.Set("Content-Type", contentType(name))
	http.ServeFileFS(w, r, staticFS, "static/"+name)
}

// contentType returns the content type of a file. The MIME table of the host is not used,
// because it differs between hosts.
func contentType(name string) string {
	types := map[string]string{
		".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml", "": "text/plain; charset=utf-8",
	}
	return cmp.Or(types[path.Ext(name)], "application/octet-stream")
}
