package store

import (
	"strings"
	"sync"
)

// sqlTranslator replaces the words in braces (see dialect) in statements. It translates each text once and caches the result, because
// translating takes longer than a lookup. The cache stays small, because only this package has such texts.
type sqlTranslator struct {
	words *strings.Replacer

	mu    sync.RWMutex
	texts map[string]string // key: text with words in braces; value: translated text
}

// newSQLTranslator returns a translator. words are words in braces, each followed by its replacement.
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
