package web_test

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"strings"
	"testing"
)

// getWithHeader requests a path with one header. It decompresses the body of the response.
func (b *testReplica) getWithHeader(path, name, value string) (status int, header http.Header, text string) {
	b.Helper()
	a := b.Send(http.MethodGet, path, http.Header{name: {value}}, nil)
	if a.Header.Get("Content-Encoding") != "gzip" {
		return a.Status, a.Header, string(a.Body)
	}
	body, err := gzip.NewReader(bytes.NewReader(a.Body))
	b.Must(err)
	read, err := io.ReadAll(body)
	b.Must(err)
	return a.Status, a.Header, string(read)
}

// TestAssetsAreSentOnce checks an asset of the dashboard (such as its script): a browser that has the current
// version gets 304, and any other browser gets the asset compressed.
func TestAssetsAreSentOnce(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	for _, path := range []string{"/assets/live.js", "/assets/style.css"} {
		_, header, text := b.getWithHeader(path, "Accept-Encoding", "gzip")
		tag := header.Get("ETag")
		if tag == "" || header.Get("Content-Encoding") != "gzip" || len(text) < 1000 {
			t.Errorf("%s: %v, %d bytes", path, header, len(text))
		}
		if status, _, _ := b.getWithHeader(path, "If-None-Match", tag); status != http.StatusNotModified {
			t.Errorf("%s again: %d", path, status)
		}
		if status, _, _ := b.getWithHeader(path, "If-None-Match", `W/"older"`); status != http.StatusOK {
			t.Errorf("%s of another version: %d", path, status)
		}
	}
}

func TestPagesArePacked(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.createPool("p", 60)
	for accepted, packed := range map[string]string{"gzip": "gzip", "identity": ""} {
		_, header, text := b.getWithHeader("/pools/p", "Accept-Encoding", accepted)
		if header.Get("Content-Encoding") != packed || !strings.Contains(text, "</html>") {
			t.Errorf("accepting %s: %v", accepted, header)
		}
	}
}
