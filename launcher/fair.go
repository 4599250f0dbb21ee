package launcher

// Beyond returns the items to remove so that the rest fits into room. Whoever has most
// loses their oldest first: a user's many items push out their own, and those of nobody who
// has less. The items come oldest first.
func Beyond[T any](items []T, room int64, owner func(T) string, size func(T) int64) (gone []T) {
	type sized struct {
		item T
		size int64
	}
	type share struct {
		sum   int64
		items []sized
	}
	shares, names, sum := map[string]*share{}, []string{}, int64(0)
	for _, item := range items {
		name, n := owner(item), size(item)
		s := shares[name]
		if s == nil {
			s = &share{}
			shares[name] = s
			names = append(names, name) // by their oldest item, so that the order of equals is the same on every node
		}
		s.items = append(s.items, sized{item, n})
		s.sum += n
		sum += n
	}
	for sum > room && len(gone) < len(items) {
		var most *share
		for _, name := range names {
			if s := shares[name]; len(s.items) > 0 && (most == nil || s.sum > most.sum) {
				most = s
			}
		}
		oldest := most.items[0]
		most.items = most.items[1:]
		most.sum -= oldest.size
		sum -= oldest.size
		gone = append(gone, oldest.item)
	}
	return gone
}
