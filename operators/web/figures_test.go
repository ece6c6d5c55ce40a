package web_test

import (
	"fmt"
	"strings"
	"testing"
)

// TestFiguresOfWhatWaitsSayWhatTheyCount checks the two numbers of waiting work on the page of a pool. The page says that one number counts
// devices, up to a limit, and that the other number counts tasks.
func TestFiguresOfWhatWaitsSayWhatTheyCount(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.createPool("p", 1, "d-1", "d-2")
	for _, path := range []string{"/", "/pools/p"} {
		_, page, _ := b.getPage(path)
		expectContains(t, page, "<dt>devices in line</dt>")
		if strings.Contains(page, "<dt>waiting</dt>") {
			t.Errorf("%s: a figure says waiting, and not of what", path)
		}
	}
	_, page, _ := b.getPage("/pools/p")
	expectContains(t, page, "<b>2</b> tasks wait")
}

// TestACardSaysThatMoreDevicesAreInLineThanWereCounted checks a card with the slots of its pool. The API counts at most 1000 devices in line.
func TestACardSaysThatMoreDevicesAreInLineThanWereCounted(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	names := make([]string, 1001)
	for i := range names {
		names[i] = fmt.Sprintf("d-%d", i)
	}
	b.createPool("p", 1, names...)
	_, page, _ := b.getPage("/")
	expectContains(t, page, "1000+</a>")
}
