package devices

import (
	"bytes"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// isNestedDeeper reports whether a JSON text has more than maxDepth levels of nested brackets. It also works on invalid JSON, so it can run
// before a recursive parser.
func isNestedDeeper(text []byte, maxDepth int) bool {
	depth := 0
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '"':
			i = stringEnd(text, i)
		case '{', '[':
			if depth++; depth > maxDepth {
				return true
			}
		case '}', ']':
			depth--
		}
	}
	return false
}

// stringEnd returns the index of the quote that ends the string at text[start], or the length of text.
func stringEnd(text []byte, start int) (end int) {
	for i := start + 1; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '"':
			return i
		}
	}
	return len(text)
}

// replaceUnstorable returns a JSON text whose strings have U+FFFD in place of characters that a text column cannot store. These are U+0000
// (raw or escaped), lone surrogates, and each byte of invalid UTF-8. It never writes to text.
func replaceUnstorable(text []byte) []byte {
	if utf8.Valid(text) && bytes.IndexByte(text, 0) < 0 && !bytes.Contains(text, []byte(`\u`)) {
		return text
	}
	var out []byte
	copied := 0 // text[:copied] is in out
	inString := false
	for i := 0; i < len(text); {
		width, bad := 1, false
		if inString {
			width, bad = nextCharacter(text[i:])
		}
		if bad {
			out = append(out, text[copied:i]...)
			out = utf8.AppendRune(out, utf8.RuneError)
			copied = i + width
		}
		if text[i] == '"' {
			inString = !inString
		}
		i += width
	}
	if copied == 0 {
		return text
	}
	return append(out, text[copied:]...)
}

// nextCharacter returns the number of bytes of the first character of text, which is inside a JSON string, and whether it must be replaced.
// It accepts malformed escapes, because the parser refuses them later.
func nextCharacter(text []byte) (width int, isUnstorable bool) {
	switch c := text[0]; {
	case c == 0:
		return 1, true
	case c == '\\':
		return nextEscape(text)
	case c < utf8.RuneSelf:
		return 1, false
	}
	r, width := utf8.DecodeRune(text)
	return width, r == utf8.RuneError && width == 1
}

// nextEscape does what nextCharacter does, for a text that begins with a backslash.
func nextEscape(text []byte) (width int, isUnstorable bool) {
	const escape, pair = len(`\u0000`), 2 * len(`\u0000`)
	unit, ok := decodeUnicodeEscape(text)
	switch {
	case !ok:
		return min(2, len(text)), false
	case unit == 0:
		return escape, true
	case !utf16.IsSurrogate(unit):
		return escape, false
	}
	if second, ok := decodeUnicodeEscape(text[escape:]); ok && utf16.DecodeRune(unit, second) != utf8.RuneError {
		return pair, false
	}
	return escape, true
}

// decodeUnicodeEscape returns the UTF-16 code unit of an escape \uXXXX at the start of text. ok is false if there is none.
func decodeUnicodeEscape(text []byte) (utf16Unit rune, ok bool) {
	if len(text) < len(`\u0000`) || text[0] != '\\' || text[1] != 'u' {
		return 0, false
	}
	n, err := strconv.ParseUint(string(text[2:6]), 16, 16)
	return rune(n), err == nil
}

// truncateText cuts text to at most maxBytes at the border of a character. A cut text ends with an ellipsis.
func truncateText(text string, maxBytes int) string {
	if len(text) <= maxBytes {
		return text
	}
	const mark = "…"
	end := maxBytes - len(mark)
	for end > 0 && !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + mark
}
