package http

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// preferredWait is how long the client would let its answer wait (RFC 7240); 0:
// it did not say, or not in a way that counts. Of several the first is meant.
func preferredWait(header http.Header) time.Duration {
	for preference := range preferences(strings.Join(header.Values("Prefer"), ",")) {
		name, value, _ := strings.Cut(preference, "=")
		if !strings.EqualFold(strings.TrimSpace(name), "wait") {
			continue
		}
		return wholeSeconds(unquote(strings.TrimSpace(value)))
	}
	return 0
}

// preferences are the parts of the header, without their parameters. Commas and
// semicolons between quotes separate nothing.
func preferences(header string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		var quoted, escaped, parameters bool
		part := strings.Builder{}
		for _, c := range []byte(header + ",") {
			switch {
			case escaped:
				escaped = false
			case quoted && c == '\\':
				escaped = true
			case c == '"':
				quoted = !quoted
			case quoted:
			case c == ';':
				parameters = true
			case c == ',':
				if !yield(part.String()) {
					return
				}
				part.Reset()
				parameters = false
				continue
			}
			if !parameters {
				part.WriteByte(c)
			}
		}
	}
}

func unquote(value string) string {
	if inner, ok := strings.CutPrefix(value, `"`); ok {
		if inner, ok = strings.CutSuffix(inner, `"`); ok {
			return inner
		}
	}
	return value
}

// maxSeconds is more than any server lets a client wait.
const maxSeconds = 1_000_000

func wholeSeconds(digits string) time.Duration {
	if digits == "" || strings.Trim(digits, "0123456789") != "" {
		return 0
	}
	n, err := strconv.Atoi(digits)
	if err != nil || n > maxSeconds { // digits only: too many of them
		n = maxSeconds
	}
	return time.Duration(n) * time.Second
}
