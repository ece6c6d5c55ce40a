package store

import (
	"fmt"
	"sync"
	"testing"
)

// TestATextIsPutIntoWordsOnce checks that each query is translated into the dialect of the database only once, even
// if several goroutines need it at the same time.
func TestATextIsPutIntoWordsOnce(t *testing.T) {
	t.Parallel()
	d := sqliteDialect()
	var asking sync.WaitGroup
	for range 4 {
		asking.Go(func() {
			for i := range 100 {
				query := fmt.Sprintf("SELECT {now}, %d", i%10)
				if got, want := d.translate(query), fmt.Sprintf("SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER), %d", i%10); got != want {
					t.Errorf("%q, want %q", got, want)
				}
			}
		})
	}
	asking.Wait()
	if n := len(d.texts); n != 10 {
		t.Errorf("%d texts are kept, want 10", n)
	}
}

// BenchmarkText measures how long the query of DeviceViews, which each report needs, takes to be translated into the dialect of the
// database.
func BenchmarkText(b *testing.B) {
	d := postgresDialect()
	query := viewsText
	b.Run("known", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			d.translate(query)
		}
	})
	b.Run("each time", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			d.words.Replace(query)
		}
	})
}
