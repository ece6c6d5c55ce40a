package api

import (
	"bytes"
	"net/http"
)

// BufferedResponse is a response that is held in memory.
type BufferedResponse struct {
	Status int
	Body   bytes.Buffer
	header http.Header
}

// NewBufferedResponse returns a response with this header, the status 200 and an empty body.
func NewBufferedResponse(header http.Header) *BufferedResponse {
	return &BufferedResponse{Status: http.StatusOK, header: header}
}

// Header returns the header of the response.
func (b *BufferedResponse) Header() http.Header { return b.header }

// WriteHeader sets the status of the response.
func (b *BufferedResponse) WriteHeader(status int) { b.Status = status }

// Write appends part to the body of the response.
func (b *BufferedResponse) Write(part []byte) (int, error) { return b.Body.Write(part) }
