package store

import (
	"strings"
	"sync"
)

// sqlTranslator replaces the words in braces in the texts of statements. Each text is translated once and then cached, because translating
// takes longer than a lookup. The cache is small, as it holds only texts of this package.
type sqlTranslator struct {
	words *strings.Replacer

	mu    sync.RWMutex
	texts map[string]string // the translated texts, by the texts with words in braces
}

func newSQLTranslator(words []string) *sqlTranslator {
	return &sqlTranslator{words: strings.NewReplacer(words...), texts: map[string]string{}}
}

// translate returns the query with its words in braces replaced for the database.
func (w *sqlTranslator) translate(query string) string {
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
