package operators

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"net/url"
	"path"
	"strconv"
)

// maxPage is the largest page that the server gives.
const maxPage = 1000

// List yields the entries of a list, page by page, at most limit (0: all). more
// says, when it is through, that there are others behind the limit. The member
// of the answer has the name of the path's end.
func (c *Client) List(ctx context.Context, list string, query url.Values, limit int) (entries iter.Seq2[json.RawMessage, error], more *bool) {
	more = new(bool)
	return func(yield func(json.RawMessage, error) bool) {
		query, left := maps.Clone(query), limit
		if query == nil {
			query = url.Values{}
		}
		for {
			query.Set("page_size", strconv.Itoa(pageSize(left, limit)))
			page, next, err := c.page(ctx, list, query)
			if err != nil {
				yield(nil, err)
				return
			}
			for _, entry := range page {
				if limit > 0 && left == 0 {
					*more = true
					return
				}
				if !yield(entry, nil) {
					return
				}
				left--
			}
			if next == "" {
				return
			}
			query.Set("page_token", next)
		}
	}, more
}

// pageSize asks for one more than is wanted, to know whether there is more.
func pageSize(left, limit int) int {
	if limit == 0 {
		return maxPage
	}
	return min(left+1, maxPage)
}

func (c *Client) page(ctx context.Context, list string, query url.Values) (entries []json.RawMessage, next string, err error) {
	text, err := c.Get(ctx, list, query)
	if err != nil {
		return nil, "", err
	}
	var page map[string]json.RawMessage
	if err := json.Unmarshal(text, &page); err != nil {
		return nil, "", fmt.Errorf("GET %s: %w", list, err)
	}
	if err := json.Unmarshal(page[path.Base(list)], &entries); err != nil {
		return nil, "", fmt.Errorf("GET %s: no %s in the answer: %w", list, path.Base(list), err)
	}
	if token := page["next_page_token"]; token != nil {
		err = json.Unmarshal(token, &next)
	}
	return entries, next, err
}
