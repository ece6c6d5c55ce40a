package http

import (
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// maxParsedSeconds bounds the result of PreferredWait, so that it does not overflow. Options.LongPollMax limits the wait.
const maxParsedSeconds = 1_000_000

// PreferredWait returns the wait of the header Prefer: wait=N (RFC 7240), or 0 if the header is missing or invalid. If there are several waits,
// it returns the first.
func PreferredWait(header http.Header) time.Duration {
	for rest := strings.Join(header.Values("Prefer"), ","); rest != ""; {
		var preference string
		preference, rest = cutUnquoted(rest, ',')
		preference, _ = cutUnquoted(preference, ';') // cut off its parameters
		name, value, _ := strings.Cut(preference, "=")
		if strings.EqualFold(strings.TrimSpace(name), "wait") {
			return parseSeconds(strings.TrimSpace(value))
		}
	}
	return 0
}

// cutUnquoted cuts text around the first separator outside of quotes. If there is no separator, the result before is the whole text.
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

func parseSeconds(value string) time.Duration {
	if n := len(value); n > 1 && value[0] == '"' && value[n-1] == '"' {
		value = value[1 : n-1]
	}
	n, err := strconv.ParseUint(value, 10, 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return 0
	}
	return time.Duration(min(n, maxParsedSeconds)) * time.Second
}
