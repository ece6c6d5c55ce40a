package simulator

import (
	"errors"
	"strings"
	"sync/atomic"
)

// replicas are the addresses of a dispatcher's replicas. A caller stays with
// one until it fails, and then goes to the next, as behind a load balancer.
type replicas struct {
	urls []string
	at   atomic.Uint64
}

// newReplicas reads URLs with commas between; a caller starts with the
// start-th, so that callers spread over them.
func newReplicas(urls string, start int) *replicas {
	r := &replicas{urls: splitURLs(urls)}
	r.at.Store(uint64(start))
	return r
}

// current is the URL to use, and the mark to leave it by.
func (r *replicas) current() (url string, mark uint64) {
	mark = r.at.Load()
	return r.urls[mark%uint64(len(r.urls))], mark
}

// leave goes on to the next, unless another failure has done so meanwhile.
func (r *replicas) leave(mark uint64) { r.at.CompareAndSwap(mark, mark+1) }

func splitURLs(urls string) []string {
	list := strings.Split(urls, ",")
	for i, url := range list {
		list[i] = strings.TrimRight(strings.TrimSpace(url), "/")
	}
	return list
}

// checkURLs is checkURL for each of a list with commas.
func checkURLs(urls string, schemes ...string) error {
	var errs []error
	for _, url := range splitURLs(urls) {
		errs = append(errs, checkURL(url, schemes...))
	}
	return errors.Join(errs...)
}
