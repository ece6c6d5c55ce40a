// Package terminal writes output for people: tables, the members of an object, a progress line. Text of devices and operators is shown
// without its control characters, which could control the terminal.
package terminal

import (
	"fmt"
	"io"
	"os"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/mattn/go-isatty"
)

// IsTerminal reports whether stream is an *os.File that is a terminal.
func IsTerminal(stream any) bool {
	file, ok := stream.(*os.File)
	return ok && isatty.IsTerminal(file.Fd())
}

// EscapeUnprintable returns text in which each character that does not print is replaced by its escape in Go: \n, \x1b, \u202e.
func EscapeUnprintable(text string) string {
	if strings.IndexFunc(text, isUnprintable) < 0 && utf8.ValidString(text) {
		return text
	}
	var safe strings.Builder
	for len(text) > 0 {
		r, size := utf8.DecodeRuneInString(text)
		switch {
		case r == utf8.RuneError && size == 1:
			_, _ = fmt.Fprintf(&safe, `\x%02x`, text[0])
		case isUnprintable(r):
			safe.WriteString(strings.Trim(fmt.Sprintf("%+q", r), "'"))
		default:
			safe.WriteString(text[:size])
		}
		text = text[size:]
	}
	return safe.String()
}

// HideUnreadable returns text unchanged if people can read it, and otherwise a note with its number of characters. Text
// is unreadable if it has more than three unprintable characters and if at least a quarter of its characters are
// unprintable.
func HideUnreadable(text string) string {
	all, hidden := 0, 0
	for _, r := range text {
		all++
		if isUnprintable(r) || r == utf8.RuneError {
			hidden++
		}
	}
	if hidden <= 3 || 4*hidden < all {
		return text
	}
	return fmt.Sprintf("(%d characters, %d do not print)", all, hidden)
}

func isUnprintable(char rune) bool { return !unicode.IsPrint(char) }

// displayWidth returns approximately how many cells of the terminal text takes: characters of East Asia take two.
func displayWidth(text string) int {
	n := 0
	for _, r := range text {
		n++
		if isWide(r) {
			n++
		}
	}
	return n
}

// isWide reports whether char takes two cells of the terminal.
func isWide(char rune) bool {
	return unicode.In(char, unicode.Han, unicode.Hangul, unicode.Hiragana, unicode.Katakana) ||
		char >= 0x3000 && char <= 0x303f || char >= 0xff00 && char <= 0xff60 || char >= 0x1f300 && char <= 0x1faff
}

// Control sequences of the terminal: erase the line; switch the wrapping of long lines off and on.
const (
	eraseLine = "\r\x1b[K"
	noWrap    = "\x1b[?7l"
	wrap      = "\x1b[?7h"
)

// Progress is a line of output that each update overwrites. If the output is not a terminal, Progress writes nothing.
type Progress struct {
	to    io.Writer
	drawn bool
	quiet bool
}

// NewProgress returns a progress line that is written to out.
func NewProgress(out io.Writer) *Progress { return &Progress{to: out, quiet: !IsTerminal(out)} }

// Show replaces the text of the line by a new text, formatted as in fmt.Sprintf.
func (p *Progress) Show(format string, args ...any) {
	if !p.quiet {
		p.drawn = true
		_, _ = fmt.Fprint(p.to, eraseLine, noWrap, EscapeUnprintable(fmt.Sprintf(format, args...)), wrap)
	}
}

// Clear erases the line. Call it before writing anything else.
func (p *Progress) Clear() {
	if p.drawn {
		_, _ = fmt.Fprint(p.to, eraseLine)
	}
	p.drawn = false
}

// Bar draws done / total as a bar of width characters between brackets: [######....]. If total is 0, the bar is full.
func Bar(done, total int64, width int) string {
	full := width
	if total > 0 {
		full = int(done * int64(width) / total)
	}
	return "[" + strings.Repeat("#", full) + strings.Repeat(".", width-full) + "]"
}
