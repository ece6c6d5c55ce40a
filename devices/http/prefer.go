package http

import (
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// maxSeconds is more than any server lets a client wait.
const maxSeconds = 1_000_000

// PreferredWait is how long the client would let its answer wait (RFC 7240); 0:
// it did not say, or not in a way that counts. Of several the first is meant.
func PreferredWait(header http.Header) time.Duration {
	for rest := strings.Join(header.Values("Prefer"), ","); rest != ""; {
		var one string
		one, rest = cutUnquoted(rest, ',')
		one, _ = cutUnquoted(one, ';') // its parameters
		name, value, _ := strings.Cut(one, "=")
		if strings.EqualFold(strings.TrimSpace(name), "wait") {
			return wholeSeconds(strings.TrimSpace(value))
		}
	}
	return 0
}

// cutUnquoted is strings.Cut at a separator that does not stand between quotes.
func cutUnquoted(text string, separator byte) (before, after string) {
	quoted := false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '"':
			quoted = !quoted
		case quoted && c == '\\':
			i++
		case !quoted && c == separator:
			return text[:i], text[i+1:]
		}
	}
	return text, ""
}

func wholeSeconds(value string) time.Duration {
	if n := len(value); n > 1 && value[0] == '"' && value[n-1] == '"' {
		value = value[1 : n-1]
	}
	n, err := strconv.ParseUint(value, 10, 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return 0
	}
	return time.Duration(min(n, maxSeconds)) * time.Second //nolint:gosec // at most maxSeconds
}
