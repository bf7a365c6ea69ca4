// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package policysource

import (
	"compress/gzip"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/hotprofile/hotprofile/extension/hotunitsextension"
	"github.com/hotprofile/hotprofile/internal/boundedread"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// read reads a source and returns the document. It returns "-" if the document has not
// changed.
func read(t *testing.T, s Source) (string, error) {
	t.Helper()
	document, changed, err := s.Read(t.Context())
	if err != nil || !changed {
		require.Empty(t, document)
		return "-", err
	}
	return string(document), nil
}

func requireRead(t *testing.T, s Source, want string) {
	t.Helper()
	got, err := read(t, s)
	require.NoError(t, err)
	require.Equal(t, want, got)
}

// file returns a source in a new directory.
func file(t *testing.T) (f *File, path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "policies.yaml")
	f = NewFile(path)
	f.settle = func(context.Context) {}
	return f, path
}

func TestFileChanges(t *testing.T) {
	f, path := file(t)
	_, err := read(t, f)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, path)

	require.NoError(t, os.WriteFile(path, []byte("one"), 0o600))
	requireRead(t, f, "one")
	requireRead(t, f, "-")
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, []byte("two"), 0o600))
	require.NoError(t, os.Chtimes(path, info.ModTime(), info.ModTime()))
	requireRead(t, f, "two") // the new file has the same size and time

	require.NoError(t, os.Remove(path))
	_, err = read(t, f)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NoError(t, os.WriteFile(path, []byte("two"), 0o600))
	requireRead(t, f, "-")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	requireRead(t, f, "")
}

// TestFileOfAConfigMap swaps the symbolic link of the directory, as the kubelet does.
func TestFileOfAConfigMap(t *testing.T) {
	dir := t.TempDir()
	volume := func(name, content string) {
		require.NoError(t, os.Mkdir(filepath.Join(dir, name), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name, "policies.yaml"), []byte(content), 0o600))
		require.NoError(t, os.Symlink(name, filepath.Join(dir, "..data_tmp")))
		require.NoError(t, os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
	}
	volume("..1", "one")
	require.NoError(t, os.Symlink("..data/policies.yaml", filepath.Join(dir, "policies.yaml")))
	f := NewFile(filepath.Join(dir, "policies.yaml"))
	f.settle = func(context.Context) {}
	requireRead(t, f, "one")
	volume("..2", "two")
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "..1")))
	requireRead(t, f, "two")
}

// TestFileIsReadWhole appends to the file between reads. A partial file must
// never be returned.
func TestFileIsReadWhole(t *testing.T) {
	f, path := file(t)
	appended := 0
	f.settle = func(context.Context) {
		if appended++; appended <= 3 {
			w, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
			require.NoError(t, err)
			_, err = io.WriteString(w, "x")
			require.NoError(t, err)
			require.NoError(t, w.Close())
		}
	}
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	requireRead(t, f, "xxx")
	appended = -10
	require.NoError(t, os.WriteFile(path, []byte("y"), 0o600))
	_, err := read(t, f)
	require.ErrorContains(t, err, "rename it")
}

func TestFileThatIsNone(t *testing.T) {
	f, path := file(t)
	require.NoError(t, os.Mkdir(path, 0o700))
	_, err := read(t, f)
	require.ErrorContains(t, err, "not a regular file")

	f, path = file(t)
	require.NoError(t, os.WriteFile(path, make([]byte, 10<<20), 0o600))
	_, err = read(t, f)
	require.ErrorIs(t, err, boundedread.ErrTooLarge)
	require.NoError(t, os.Truncate(path, hotunitsextension.MaxPolicyFile))
	document, changed, err := f.Read(t.Context())
	require.NoError(t, err)
	require.True(t, changed)
	require.Len(t, document, hotunitsextension.MaxPolicyFile)
}

// server starts a server with the handler and returns a source that reads
// from the server.
func server(t *testing.T, answer http.HandlerFunc) *HTTP {
	t.Helper()
	s := httptest.NewServer(answer)
	t.Cleanup(s.Close)
	h := NewHTTP(s.Client(), s.URL+"/policies.yaml")
	t.Cleanup(h.Close)
	return h
}

func TestHTTPWithETags(t *testing.T) {
	document, etag := "one", `"1"`
	var asked []string
	h := server(t, func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.Header.Get("If-None-Match"))
		if etag != "" {
			w.Header().Set("ETag", etag)
		}
		if etag != "" && r.Header.Get("If-None-Match") == etag {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		_, _ = io.WriteString(w, document)
	})
	requireRead(t, h, "one")
	requireRead(t, h, "-")
	document, etag = "two", `W/"2"`
	requireRead(t, h, "two")
	requireRead(t, h, "-")
	etag = `"3"`
	requireRead(t, h, "-") // another ETag for the same document
	etag = ""
	requireRead(t, h, "-")
	document = "three"
	requireRead(t, h, "three")
	etag = `"` + strings.Repeat("x", maxETag) + `"`
	requireRead(t, h, "-")
	requireRead(t, h, "-")
	require.Equal(t, []string{"", `"1"`, `"1"`, `W/"2"`, `W/"2"`, `"3"`, "", "", ""}, asked)
}

func TestHTTPAnswersThatAreNone(t *testing.T) {
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		want   string
	}{
		"not found":         {http.NotFound, "404"},
		"a redirect":        {http.RedirectHandler("http://127.0.0.1:1/", http.StatusFound).ServeHTTP, "redirects are not followed"},
		"not modified what": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotModified) }, "304"},
		"no content":        {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }, "204"},
		"too large":         {func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 10<<20)) }, "262144 bytes"},
		"a bomb": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			_, _ = z.Write(make([]byte, 100<<20))
			_ = z.Close()
		}, "262144 bytes"},
		"cut off": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "- name: a")
		}, "unexpected EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := read(t, server(t, c.answer))
			require.ErrorContains(t, err, c.want)
		})
	}
}

// TestHTTPThatNeverAnswers checks that reading ends with the context. The server stops
// either before the header or in the body.
func TestHTTPThatNeverAnswers(t *testing.T) {
	for name, begin := range map[string]func(w http.ResponseWriter){
		"no header": func(http.ResponseWriter) {},
		"half a body": func(w http.ResponseWriter) {
			_, _ = io.WriteString(w, "- name: a")
			w.(http.Flusher).Flush()
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := server(t, func(w http.ResponseWriter, r *http.Request) {
				begin(w)
				<-r.Context().Done()
			})
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			_, _, err := h.Read(ctx)
			require.ErrorIs(t, err, errTimeout)
		})
	}
}
