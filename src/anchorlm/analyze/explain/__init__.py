"""What a hybrid lost, where and why: branches knocked out, read-outs compared, maps taken apart, slots left out."""
