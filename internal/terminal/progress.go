package terminal

import (
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Progress is a line that is written over while it changes. Where the output
// is no terminal it writes nothing.
type Progress struct {
	to    io.Writer
	last  int // its width
	quiet bool
}

// NewProgress on a terminal.
func NewProgress(to io.Writer) *Progress { return &Progress{to: to, quiet: !Is(to)} }

// Show replaces the line.
func (p *Progress) Show(format string, a ...any) {
	if p.quiet {
		return
	}
	text := fit(Safe(fmt.Sprintf(format, a...)), columns(p.to))
	wide := width(text)
	_, _ = fmt.Fprint(p.to, "\r", text, strings.Repeat(" ", max(p.last-wide, 0)))
	p.last = wide
}

// columns of a terminal; 0: unknown.
func columns(to io.Writer) int {
	file, ok := to.(*os.File)
	if !ok {
		return 0
	}
	size, err := unix.IoctlGetWinsize(int(file.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	return int(size.Col)
}

// fit cuts a line that would wrap, for then it could not be written over.
func fit(text string, columns int) string {
	runes := []rune(text)
	for columns > 0 && width(string(runes)) >= columns {
		runes = runes[:len(runes)-1]
	}
	return string(runes)
}

// Clear takes the line away, before something else is written.
func (p *Progress) Clear() {
	if p.last > 0 {
		p.Show("")
		_, _ = fmt.Fprint(p.to, "\r")
	}
	p.last = 0
}

// Bar draws how much of a whole is done: [######....].
func Bar(done, total int64, wide int) string {
	full := wide
	if total > 0 {
		full = int(done * int64(wide) / total)
	}
	return "[" + strings.Repeat("#", full) + strings.Repeat(".", wide-full) + "]"
}
