package store

import (
	"strings"
	"sync"
)

// wording puts a database's words into the texts of statements, once into each: the
// texts are those of this package, and few, and to go through one takes longer than to find it.
type wording struct {
	words *strings.Replacer

	mu    sync.RWMutex
	texts map[string]string // by those with words in braces
}

func newWording(words []string) *wording {
	return &wording{words: strings.NewReplacer(words...), texts: map[string]string{}}
}

// text is the query in the words of the database.
func (w *wording) text(query string) string {
	w.mu.RLock()
	text, known := w.texts[query]
	w.mu.RUnlock()
	if known {
		return text
	}
	text = w.words.Replace(query)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.texts[query] = text
	return text
}
