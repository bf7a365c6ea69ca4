// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package dotnet

import (
	"encoding/json"
	"fmt"
	"net/http"
)

// problem is the body of a response other than 202, in the format of RFC 9457. It has no
// type, so its title is the text of the status.
type problem struct {
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
	// Result is absent if no buffer was read.
	*Result
	// These fields describe the fault in an unreadable buffer, and its position.
	Offset   *int   `json:"offset,omitempty"`
	Opcode   *byte  `json:"opcode,omitempty"`
	Expected string `json:"expected,omitempty"`
	Found    *int64 `json:"found,omitempty"`
}

func problemOf(status int, format string, args ...any) *problem {
	return &problem{Status: status, Detail: fmt.Sprintf(format, args...)}
}

// write sends the problem as the response.
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

// writeProblem responds with a status and the reason. It is used for requests that did not
// reach the handler.
func writeProblem(w http.ResponseWriter, _ *http.Request, why string, status int) {
	problemOf(status, "%s", why).write(w)
}
