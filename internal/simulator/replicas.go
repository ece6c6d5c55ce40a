package simulator

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
)

// replicas holds the addresses of replicas. A caller uses one until it fails, and then the next.
type replicas struct {
	urls     []string
	position atomic.Uint64
}

// newReplicas parses URLs that are separated by commas. The caller begins with URL number start.
func newReplicas(urls string, start int) *replicas {
	r := &replicas{urls: splitURLs(urls)}
	r.position.Store(uint64(start))
	return r
}

// current returns the URL to use, and the position to pass to failOver.
func (r *replicas) current() (url string, position uint64) {
	position = r.position.Load()
	return r.urls[position%uint64(len(r.urls))], position
}

// failOver switches to the next URL, unless another failure has already done so.
func (r *replicas) failOver(position uint64) { r.position.CompareAndSwap(position, position+1) }

func splitURLs(urls string) []string {
	list := strings.Split(urls, ",")
	for i, one := range list {
		list[i] = strings.TrimRight(strings.TrimSpace(one), "/")
	}
	return list
}

func checkURLs(urls string, schemes ...string) error {
	for _, text := range splitURLs(urls) {
		u, err := url.Parse(text)
		if err != nil {
			return fmt.Errorf("invalid URL: %w", err)
		}
		if u.Host == "" || !slices.Contains(schemes, u.Scheme) {
			return fmt.Errorf("URL %q: want %s://host:port", u.Redacted(), strings.Join(schemes, ":// or "))
		}
	}
	return nil
}
