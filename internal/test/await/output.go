package await

import (
	"bytes"
	"sync"
)

// Output collects what a logger or a process writes. A test may read the output while the process writes. The zero value is ready to use.
type Output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write appends text to the output.
func (o *Output) Write(text []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(text)
}

// String returns the output so far.
func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}
