// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package dotnet

import (
	"encoding/json"
	"fmt"
	"net/http"
)

// problem is why a request is not answered with 202, as RFC 9457 has it. It goes
// without a type, which means that the title is that of the status.
type problem struct {
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
	// Samples is how many were kept, and the rest what became of others; absent
	// where no buffer was read.
	*Result
	// Where an unreadable buffer's fault is.
	Offset   *int   `json:"offset,omitempty"`
	Opcode   *byte  `json:"opcode,omitempty"`
	Expected string `json:"expected,omitempty"`
	Found    *int64 `json:"found,omitempty"`
}

func problemOf(status int, format string, args ...any) *problem {
	return &problem{Status: status, Detail: fmt.Sprintf(format, args...)}
}

// write answers with the problem. Whoever asked may be gone: there is no one to
// tell.
func (p *problem) write(w http.ResponseWriter) {
	p.Title = http.StatusText(p.Status)
	answer(w, p.Status, "application/problem+json", p)
}

func answer(w http.ResponseWriter, status int, contentType string, body any) {
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body)
}

// WriteProblem answers with a status and the reason, for what is refused before
// it gets to the handler.
func WriteProblem(w http.ResponseWriter, _ *http.Request, why string, status int) {
	problemOf(status, "%s", why).write(w)
}
